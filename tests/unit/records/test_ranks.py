"""How the records of ranks become one: sums, extremes, and who is to blame."""

import math
from dataclasses import replace

import pytest

from ampwise.records.files import from_json, to_json
from ampwise.records.nonfinite import BadInput, FoundBy, NonFiniteKind, NonFiniteRecord, Operand, Origin
from ampwise.records.numerics import MagnitudeHistogram, NumericsRecord, SampledStep, TensorKind, TensorStatistics
from ampwise.records.ranks import merged
from ampwise.records.run import UNTOLD, Failure, RunEnd, RunRecord, StepRecord
from ampwise.records.site import Phase, Site

INF, NAN = math.inf, math.nan


def step(index, loss, **fields):
    return StepRecord(index=index, optimizer=0, loss=loss, **{"time_ms": 1.0, **fields})


def run(losses=(1.0, 2.0, 3.0), **fields):
    steps = tuple(step(index, loss) for index, loss in enumerate(losses))
    options = {
        "variant": "bf16",
        "precision": "bf16",
        "reason": "",
        "repeat": 0,
        "end": RunEnd.FINISHED,
        "steps": steps,
    }
    return RunRecord(**{**options, **fields})


def test_one_rank_alone_is_told_as_it_is():
    alone = run()
    assert merged([(0, alone)]) is alone


def test_losses_are_averaged_times_are_the_slowest_ones_and_samples_are_counted_together():
    first = run(steps=(step(0, 1.0, time_ms=2.0, num_samples=4), step(1, 2.0, time_ms=None, num_samples=4)))
    second = run(
        steps=(step(0, 3.0, time_ms=5.0, num_samples=8), step(1, NAN, time_ms=3.0, num_samples=8, skipped=True))
    )
    one, two = merged([(1, second), (0, first)]).steps
    assert (one.loss, one.time_ms, one.num_samples, one.skipped) == (2.0, 5.0, 12, False)
    assert math.isnan(two.loss)
    assert (two.time_ms, two.num_samples, two.skipped) == (None, 12, True)


def test_what_each_rank_did_is_kept_and_the_fullest_memory_counts():
    first, second = run(peak_tensor_bytes=10), run((1.0, INF, 1.0), peak_tensor_bytes=30)
    both = merged([(0, first), (1, second)])
    assert both.peak_tensor_bytes == 30
    assert [(one.rank, one.num_steps, one.peak_bytes, one.first_bad_loss) for one in both.ranks] == [
        (0, 3, 10, None),
        (1, 3, 30, 1),
    ]
    assert from_json(to_json(both), RunRecord) == both


def test_the_rank_that_failed_by_itself_is_told_not_those_that_lost_it():
    lost = Failure(kind="RuntimeError", message="[gloo] Connection closed by peer [127.0.0.1]")
    own = Failure(kind="ValueError", message="no more", where="train.py:20")
    first, second = run(end=RunEnd.FAILED, failure=lost), run((1.0,), end=RunEnd.FAILED, failure=own)
    both = merged([(0, first), (1, second)])
    assert both.failure == own
    assert "rank 1 failed first; what it says is told above" in both.notes
    assert "the ranks made different numbers of steps: rank 0: 3, rank 1: 1" in both.notes


def test_ranks_that_skipped_different_steps_are_told():
    first = run(steps=tuple(step(index, 1.0, skipped=index == 1) for index in range(3)))
    assert any(
        "skipped different steps" in note and "rank 0: 1, rank 1: none" in note
        for note in merged([(0, first), (1, run())]).notes
    )
    assert merged([(0, first), (1, first)]).notes == ()


def statistics(*amax, count=2, first_bin=1016):
    histogram = MagnitudeHistogram(num_zeros=1, num_infinite=0, num_nan=0, first_bin=first_bin, counts=(count,))
    return TensorStatistics(
        module="net",
        module_kind="Linear",
        kind=TensorKind.GRADIENT,
        dtype="fp32",
        num_elements=3,
        amax=amax,
        histogram=histogram,
    )


def numerics(*tensors):
    return NumericsRecord(num_steps=2, steps=(SampledStep(index=0), SampledStep(index=1)), tensors=tensors, every=1)


def test_histograms_are_summed_and_extremes_name_their_rank():
    first, second = numerics(statistics(1.0, 2.0)), numerics(statistics(0.5, 8.0, count=5))
    one = merged([(0, run(numerics=first)), (1, run(numerics=second))]).numerics.tensors[0]
    assert one.histogram.counts == (7,)
    assert one.histogram.num_zeros == 2
    assert (one.amax, one.rank) == ((1.0, 8.0), 1)


def test_an_extreme_that_is_not_finite_wins():
    first, second = numerics(statistics(9.0, 2.0)), numerics(statistics(1.0, NAN))
    one = merged([(0, run(numerics=first)), (1, run(numerics=second))]).numerics.tensors[0]
    assert one.amax[0] == 9.0
    assert math.isnan(one.amax[1])
    assert one.rank == 1


def origin(op, phase=Phase.FORWARD, *, at=3, found_by=FoundBy.TRACE, module="net.0"):
    site = Site(phase=phase, module=module, op=op)
    return Origin(step=at, kind=NonFiniteKind.NAN, site=site, found_by=found_by)


def seen(*origins, loss_steps=(), **fields):
    return run(
        nonfinite=NonFiniteRecord(num_steps=5, origins=origins, loss_steps=loss_steps, gradient_steps=(3,), **fields)
    )


def blamed(*runs):
    both = merged(list(enumerate(runs)))
    return [(one.rank, one.site.op) for one in both.nonfinite.origins]


ROOT = seen(origin("aten.sqrt"), loss_steps=(3,))
GUARDED = origin(None, Phase.BACKWARD, found_by=FoundBy.GUARD)


@pytest.mark.parametrize(
    ("runs", "who"),
    [
        # the loss of rank 1 is NaN: rank 0 only sees its gradients in the bucket
        ((seen(GUARDED), ROOT), [(1, "aten.sqrt")]),
        ((seen(origin("aten.copy_", Phase.BACKWARD)), ROOT), [(1, "aten.sqrt")]),
        # the backward pass of rank 1 overflows
        ((seen(GUARDED), seen(origin("aten.mm", Phase.BACKWARD))), [(1, "aten.mm")]),
        # both by themselves
        ((seen(origin("aten.log"), loss_steps=(3,)), ROOT), [(0, "aten.log"), (1, "aten.sqrt")]),
        # nobody knows more than that gradients were bad
        ((seen(GUARDED), seen(GUARDED)), [(0, None)]),
        # a later step of rank 0's own is not what came first
        ((seen(origin("aten.mm", Phase.BACKWARD, at=4)), ROOT), [(1, "aten.sqrt")]),
    ],
)  # fmt: skip
def test_a_nan_is_blamed_on_the_rank_that_made_it(runs, who):
    assert blamed(*runs) == who


def test_a_bad_batch_is_its_ranks_and_what_follows_from_it_is_not_told_of_others():
    value = Operand(dtype="fp32", shape=(1,), minimum=None, maximum=None, num_nan=1)
    given = BadInput(step=3, module="net", name="argument 0", is_parameter=False, value=value)
    both = merged([(0, seen(GUARDED)), (1, seen(inputs=(given,), loss_steps=(3,)))])
    assert both.nonfinite.inputs == (replace(given, rank=1),)
    assert both.nonfinite.origins == ()
    assert both.nonfinite.loss_steps == (3,)


def waiting(*ahead):
    """A rank whose steps take 100 ms, so much of it before the backward pass."""
    steps = tuple(step(index, 1.0, time_ms=100.0, ahead_ms=ms) for index, ms in enumerate(ahead))
    return run(steps=steps)


def test_the_rank_that_all_others_wait_for_is_named():
    both = merged([(0, waiting(*[5.0] * 6)), (1, waiting(*[80.0] * 6)), (2, waiting(*[7.0] * 6))])
    assert [one.ahead_ms_median for one in both.ranks] == [5.0, 80.0, 7.0]
    (note,) = both.notes
    assert note.startswith("rank 1 comes to its backward pass 74.0 ms later than the others, who wait for it: look at ")
    assert merged([(0, waiting(*[5.0] * 6)), (1, waiting(*[11.0] * 6))]).notes == ()
    assert merged([(0, run()), (1, waiting(*[80.0] * 3))]).notes == ()


def test_ranks_that_are_late_by_turns_are_a_busy_machine_and_few_steps_say_nothing():
    by_turns = [waiting(*([80.0, 5.0][(index + rank) % 2] for index in range(9))) for rank in (0, 1)]
    assert merged(list(enumerate(by_turns))).notes == ()
    assert merged([(0, waiting(5.0, 5.0, 5.0, 5.0)), (1, waiting(5.0, 5.0, 80.0, 80.0))]).notes == ()


def test_ranks_whose_own_scalers_differ_are_told():
    def scaled(*scales):
        return run(steps=tuple(step(index, 1.0, scale=scale) for index, scale in enumerate(scales)))

    both = merged([(0, scaled(4.0, 4.0)), (1, scaled(4.0, 8.0))])
    assert both.notes == ("the ranks scaled their losses differently, first at step 1: rank 0: 4, rank 1: 8",)
    assert merged([(0, scaled(4.0, 4.0)), (1, scaled(4.0, 4.0, 8.0))]).notes[1:] == ()


LOST = Failure(kind="RuntimeError", message="Connection closed by peer [127.0.0.1]:408", where="train.py:10")


def test_a_rank_that_came_to_its_end_too_early_is_named_not_the_one_that_lost_it():
    left = run(end=RunEnd.FAILED, failure=LOST)
    both = merged([(0, left), (1, run((1.0, 2.0)))])
    assert (both.end, both.failure) == (RunEnd.FAILED, LOST)
    assert both.notes[-1].startswith("rank 1 came to its own end after 2 steps; rank 0 went on, and lost it: give all")


def test_a_rank_that_shadowed_the_others_until_they_were_stopped_is_no_failure():
    shadow = run((), end=RunEnd.FAILED, failure=LOST)
    both = merged([(0, shadow), (1, run(end=RunEnd.STOPPED))])
    assert (both.end, both.failure, len(both.steps)) == (RunEnd.STOPPED, None, 3)
    assert both.notes[-1] == "rank 0 was still at work when rank 1 had made the steps asked for, and ended with it"


def test_a_rank_without_a_batch_is_no_failure_either():
    both = merged([(0, run((), end=RunEnd.NO_STEPS)), (1, run())])
    assert (both.end, both.failure, len(both.steps)) == (RunEnd.FINISHED, None, 3)
    assert merged([(0, run((), end=RunEnd.NO_STEPS))] * 2).end is RunEnd.NO_STEPS


def test_a_fault_of_its_own_counts_though_others_were_stopped():
    own = Failure(kind="KeyError", message="17", where="train.py:8")
    both = merged([(0, run(end=RunEnd.STOPPED)), (1, run(end=RunEnd.FAILED, failure=own)), (2, run((), failure=LOST))])
    assert (both.end, both.failure) == (RunEnd.FAILED, own)
    assert both.notes[-1] == "rank 1 failed first; what it says is told above"


def test_what_was_noted_of_the_rank_that_failed_is_told():
    own = Failure(kind="KeyError", message="17")
    failed = run(end=RunEnd.FAILED, failure=own, notes=("of both", "printed there"))
    both = merged([(0, run(end=RunEnd.FAILED, failure=LOST, notes=("of both",))), (1, failed)])
    assert both.notes == ("of both", "rank 1 failed first; what it says is told above", "rank 1: printed there")
    assert merged([(0, run(notes=("of both",))), (1, run(notes=("its own",)))]).notes == ("of both",)


def test_a_rank_that_was_killed_is_told_not_those_that_lost_it():
    signal = Failure(kind="signal 9", message="")
    killed = run((), end=RunEnd.KILLED, failure=signal, reason=UNTOLD)
    both = merged([(0, run(end=RunEnd.FAILED, failure=LOST)), (1, killed)])
    assert (both.end, both.failure, len(both.steps)) == (RunEnd.KILLED, signal, 3)
    assert both.notes == (
        "rank 1 was ended by signal 9, and the others lost it",
    )  # how many steps it made nobody knows
    own = Failure(kind="KeyError", message="17")
    assert merged([(0, run(end=RunEnd.FAILED, failure=own)), (1, killed)]).failure == own
    assert merged([(0, run(end=RunEnd.STOPPED)), (1, killed)]).end is RunEnd.STOPPED


def test_where_all_lost_each_other_nobody_is_blamed():
    ends = [run(end=RunEnd.FAILED, failure=replace(LOST, where=f"train.py:{line}")) for line in (1, 2)]
    assert merged(list(enumerate(ends))).notes == ("rank 0 is told above; which rank ended first is not known",)

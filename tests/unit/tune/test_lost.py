"""Gradients that vanish in a format: seen in the run itself, for the loss does not show what is not learnt."""

import pytest

from ampwise.records.numerics import MagnitudeHistogram, NumericsRecord, SampledStep, TensorKind, TensorStatistics
from ampwise.records.run import RunEnd, RunRecord
from ampwise.tune.lost import lost_updates


def weight(module, *, num_zeros, num=100, kind=TensorKind.WEIGHT_GRADIENT):
    return TensorStatistics(
        module=module,
        module_kind="Linear",
        kind=kind,
        parameter="weight",
        dtype="fp32",
        num_elements=num,
        histogram=MagnitudeHistogram(num_zeros=num_zeros, num_infinite=0, num_nan=0, counts=(num - num_zeros,)),
    )


def run(*tensors):
    numerics = NumericsRecord(num_steps=9, steps=(SampledStep(index=0),), tensors=tensors, every=9)
    return RunRecord(variant="fp16", precision="fp16", reason="", repeat=0, end=RunEnd.STOPPED, numerics=numerics)


@pytest.mark.parametrize(
    ("in_fp32", "in_low", "share"), [(0, 49, None), (0, 50, "50%"), (50, 74, None), (50, 75, "50%"), (0, 100, "100%")]
)
def test_half_of_what_fp32_has_is_too_much(in_fp32, in_low, share):
    told = lost_updates(run(weight("fc", num_zeros=in_low)), run(weight("fc", num_zeros=in_fp32)))
    expected = None if share is None else f"{share} of the updates of fc.weight are lost, for its gradient vanishes"
    assert told == expected


def test_the_worst_is_named_and_the_others_are_counted():
    low = [weight("a", num_zeros=60), weight("b", num_zeros=90), weight("c", num_zeros=10), weight("", num_zeros=70)]
    fp32 = [weight(one.module, num_zeros=0) for one in low]
    assert lost_updates(run(*low), run(*fp32)).startswith("90% of the updates of b.weight are lost")
    assert lost_updates(run(*low), run(*fp32)).endswith("; 2 other weights lose at least half")
    assert lost_updates(run(low[3]), run(fp32[3])) == "70% of the updates of weight are lost, for its gradient vanishes"


def test_what_says_nothing_is_no_loss():
    vanished = weight("fc", num_zeros=100)
    assert lost_updates(run(vanished), run(weight("fc", num_zeros=100))) is None  # in fp32 too
    assert lost_updates(run(vanished), run()) is None
    assert lost_updates(run(weight("fc", num_zeros=8, num=8)), run(weight("fc", num_zeros=0, num=8))) is None
    other = weight("fc", num_zeros=100, kind=TensorKind.ACTIVATION)
    assert lost_updates(run(other), run(weight("fc", num_zeros=0, kind=TensorKind.ACTIVATION))) is None
    without = RunRecord(variant="fp16", precision="fp16", reason="", repeat=0, end=RunEnd.STOPPED)
    assert lost_updates(without, run(vanished)) is None

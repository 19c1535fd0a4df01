import math
import random

import pytest

from ampwise.compare.parity import judge, judge_curves, judge_reference, measure_noise
from ampwise.records.comparison import Verdict
from ampwise.records.run import StepRecord


def falling(seed, *, num_steps=60, noise=0.05, luck=0.0, extra=0.0):
    """A loss that falls from 3.3 to 1.2 with a seed's noise and luck, and ``extra`` that grows to its share of it."""
    generator = random.Random(seed)
    factor = 1 + luck * generator.gauss(0, 1)
    return tuple(
        factor * (1 + 2.3 * math.exp(-step / 25)) * (1 + extra * step / num_steps) + noise * generator.gauss(0, 1)
        for step in range(num_steps)
    )


FP32 = {repeat: falling(repeat) for repeat in (0, 1)}


def shifted(curves, by, *, start=0):
    return {repeat: tuple(loss + by * (t >= start) for t, loss in enumerate(curve)) for repeat, curve in curves.items()}


def test_equal_losses_are_identical(run_of):
    fp32 = [run_of(FP32[repeat], repeat=repeat) for repeat in (0, 1)]
    variant = [run_of(FP32[repeat], variant="auto", repeat=repeat) for repeat in (0, 1)]
    judgement = judge(variant, fp32=fp32)
    assert judgement.verdict is Verdict.IDENTICAL
    assert judgement.reason == "all 120 losses equal fp32's with the same seeds, bit for bit"


def test_one_bit_is_a_difference(run_of):
    fp32 = [run_of(FP32[repeat], repeat=repeat) for repeat in (0, 1)]
    almost = (*FP32[0][:-1], math.nextafter(FP32[0][-1], 9))
    assert judge([run_of(almost)], fp32=fp32).verdict is Verdict.WITHIN_NOISE


def test_nan_at_the_same_steps_is_identical(run_of):
    curve = (1.0, math.nan, math.nan)
    assert judge([run_of(curve)], fp32=[run_of(curve)]).verdict is Verdict.IDENTICAL


def test_rounding_is_within_noise():
    generator = random.Random(7)
    rounded = {r: tuple(loss * (1 + 0.004 * generator.uniform(-1, 1)) for loss in curve) for r, curve in FP32.items()}
    judgement = judge_curves(rounded, fp32=FP32)
    assert judgement.verdict is Verdict.WITHIN_NOISE
    assert "mean loss of the last 30 steps" in judgement.reason
    assert "fp32's own noise between seeds is 0.0" in judgement.reason


def test_another_seed_is_within_noise():
    assert judge_curves({0: falling(10), 1: falling(11)}, fp32=FP32).verdict is Verdict.WITHIN_NOISE


def test_a_gap_that_comes_again_is_drifting():
    judgement = judge_curves(shifted(FP32, 0.2), fp32=FP32)
    assert judgement.verdict is Verdict.DRIFTING
    assert "0.2 (" in judgement.reason
    assert "above fp32's" in judgement.reason
    assert "repeats +0.2, +0.2" in judgement.reason


def test_a_lower_loss_drifts_too():
    judgement = judge_curves(shifted(FP32, -0.2), fp32=FP32)
    assert judgement.verdict is Verdict.DRIFTING
    assert "below fp32's" in judgement.reason


def test_a_gap_to_either_side_is_noise():
    variant = {0: shifted(FP32, 0.2)[0], 1: shifted(FP32, -0.2)[1]}
    assert judge_curves(variant, fp32=FP32).verdict is Verdict.WITHIN_NOISE


def test_one_repeat_asks_for_a_larger_gap():
    noise = measure_noise(FP32)
    for factor, verdict in ((4.0, Verdict.WITHIN_NOISE), (6.0, Verdict.DRIFTING)):
        variant = {0: shifted(FP32, factor * noise.size)[0]}
        assert judge_curves(variant, fp32=FP32).verdict is verdict
    for factor, verdict in ((2.8, Verdict.WITHIN_NOISE), (3.2, Verdict.DRIFTING)):
        assert judge_curves(shifted(FP32, factor * noise.size), fp32=FP32).verdict is verdict


def test_a_loss_that_becomes_nan_has_diverged():
    broken = {r: (*curve[:40], *(math.nan,) * 20) for r, curve in FP32.items()}
    judgement = judge_curves(broken, fp32=FP32)
    assert judgement.verdict is Verdict.DIVERGED
    assert judgement.reason == "20 of 60 loss values are not finite, the first at step 41; fp32's are"


def test_one_run_of_two_that_becomes_nan_has_diverged():
    assert judge_curves({0: FP32[0], 1: (*FP32[1][:-1], math.inf)}, fp32=FP32).verdict is Verdict.DIVERGED


def test_a_loss_that_is_mostly_nan_has_diverged():
    mostly = {r: tuple(math.nan if t > 30 and t % 3 else loss for t, loss in enumerate(c)) for r, c in FP32.items()}
    assert judge_curves(mostly, fp32=FP32).verdict is Verdict.DIVERGED


def test_a_single_nan_of_a_skipped_step_is_forgiven():
    variant = {r: (*curve[:40], math.inf, *curve[41:]) for r, curve in FP32.items()}
    assert judge_curves(variant, fp32=FP32, num_skipped=1).verdict is Verdict.WITHIN_NOISE


def test_a_loss_that_never_falls_has_diverged():
    stuck = dict.fromkeys(FP32, (3.3,) * 60)
    assert judge_curves(stuck, fp32=FP32).verdict is Verdict.DIVERGED


def test_skipped_steps_leave_a_variant_behind():
    steep = {r: tuple(10.0 - 0.1 * t + 0.001 * r for t in range(60)) for r in (0, 1)}
    behind = {r: (curve[0],) * 3 + curve[:-3] for r, curve in steep.items()}
    assert judge_curves(behind, fp32=steep).verdict is Verdict.DRIFTING
    judgement = judge_curves(behind, fp32=steep, num_skipped=3)
    assert judgement.verdict is Verdict.WITHIN_NOISE
    assert "skipped steps allowed for" in judgement.reason


def test_seeds_without_noise_are_judged_by_bf16s_rounding():
    curve = tuple(2.0 - 0.01 * t for t in range(60))
    fp32 = {0: curve, 1: curve}
    noise = measure_noise(fp32)
    assert noise.size == pytest.approx(2.0**-9 * noise.level)
    assert judge_curves(shifted(fp32, 0.002), fp32=fp32).verdict is Verdict.WITHIN_NOISE
    assert judge_curves(shifted(fp32, 0.05), fp32=fp32).verdict is Verdict.DRIFTING


def test_losses_of_zero_do_not_divide():
    zero = {0: (0.0,) * 20, 1: (0.0,) * 20}
    assert judge_curves(zero, fp32=zero).verdict is Verdict.WITHIN_NOISE
    assert judge_curves(shifted(zero, 1.0), fp32=zero).verdict is Verdict.DIVERGED


def test_too_few_steps_are_not_judged():
    few = {0: (1.0, 2.0, 3.0), 1: (1.5, 2.5, 3.5)}
    judgement = judge_curves(shifted(few, 100.0), fp32=few)
    assert judgement.verdict is None
    assert "at least 8 steps" in judgement.reason


def test_one_fp32_seed_is_not_enough():
    assert judge_curves(FP32, fp32={0: FP32[0]}).verdict is None


def test_fp32_that_is_not_finite_is_no_reference():
    broken = {0: FP32[0], 1: (math.nan,) * 60}
    judgement = judge_curves(FP32, fp32=broken)
    assert judgement.verdict is None
    assert judgement.reason == "no reference: fp32's own loss is not finite"


def test_the_worst_optimizer_decides(run_of):
    def run(repeat, *, shift=0.0, variant="fp32"):
        steps = []
        for index, loss in enumerate(FP32[repeat]):
            steps.append(StepRecord(index=2 * index, optimizer=0, loss=loss, time_ms=None))
            steps.append(StepRecord(index=2 * index + 1, optimizer=1, loss=loss + shift, time_ms=None))
        return run_of(steps=tuple(steps), repeat=repeat, variant=variant)

    fp32 = [run(0), run(1)]
    judgement = judge([run(0, shift=0.2, variant="bf16"), run(1, shift=0.2, variant="bf16")], fp32=fp32)
    assert judgement.verdict is Verdict.DRIFTING
    assert "mean optimizer 1's loss of" in judgement.reason


def test_runs_that_did_not_finish_are_left_out(run_of, failed_run):
    fp32 = [run_of(FP32[repeat], repeat=repeat) for repeat in (0, 1)]
    assert judge([failed_run()], fp32=fp32).reason == "not judged: no run finished"
    assert judge([run_of(FP32[0])], fp32=[failed_run()]).reason == "no reference: no fp32 run finished"
    assert judge([run_of(FP32[0], repeat=5)], fp32=fp32).reason.startswith("not judged: no run has the same seeds")


def test_a_script_without_a_loss_is_not_judged(run_of):
    runs = [run_of((None, None), repeat=repeat) for repeat in (0, 1)]
    assert judge(runs, fp32=runs).reason == "not judged: no loss was seen"


def test_the_reference_states_its_noise(run_of):
    judgement = judge_reference([run_of(FP32[repeat], repeat=repeat) for repeat in (0, 1)])
    assert judgement.verdict is None
    assert judgement.reason.startswith("the reference; its noise between seeds over the last 30 steps is 0.0")
    assert judge_reference([run_of(FP32[0])]).reason.startswith(
        "the reference; its noise is unknown: that takes two fp32 seeds"
    )


def test_seeds_that_agree_by_luck_do_not_make_the_noise_zero():
    wobble = tuple((-1.0) ** t for t in range(60))
    fp32 = {0: tuple(5.0 + w for w in wobble), 1: tuple(5.0 - w * (1 if t % 3 else -1) for t, w in enumerate(wobble))}
    assert measure_noise(fp32).size > 2.0**-9 * 5.0

import math
from dataclasses import replace

import pytest

import recordings
from ampwise.examine.passes import follow_ups, is_faulty, rescue, still_fails, suspects, watched
from ampwise.plan.file import parse_plan
from ampwise.plan.plan import Plan, Rule
from ampwise.plan.writing import to_toml
from ampwise.records.nonfinite import FoundBy, NonFiniteKind, NonFiniteRecord, Origin
from ampwise.records.run import Failure, Role, RunEnd
from ampwise.records.site import Phase, Site
from ampwise.runner.instruments import ROWS
from ampwise.runner.spec import Amp, LaunchSpec

SPEC = LaunchSpec(stop_after=20)
HEALTHY = recordings.run("bf16", "bf16", num_steps=20)
FP16 = recordings.run("fp16", "fp16", steps=recordings.steps(recordings.losses(20, 0), 50.0, 0, scale=65536.0))


def with_losses(record, **losses):
    steps = tuple(replace(one, loss=losses.get(f"at_{one.index}", one.loss)) for one in record.steps)
    return replace(record, steps=steps)


def origin(module):
    site = Site(phase=Phase.FORWARD, module=module, op="aten.mm")
    return Origin(step=3, kind=NonFiniteKind.INF, site=site, found_by=FoundBy.TRACE)


def roles(record):
    return [one.role for one in follow_ups(record, SPEC)]


def test_the_first_run_is_watched_by_every_instrument():
    assert watched(SPEC).spec.instruments == tuple(row.name for row in ROWS)
    assert watched(SPEC).spec.stop_after == 20


def test_a_healthy_run_is_only_made_again_in_fp32():
    (only,) = follow_ups(HEALTHY, SPEC)
    assert (only.role, only.spec.precision, only.spec.amp) == (Role.IN_FP32, "fp32", Amp.OFF)
    assert only.spec.instruments == ("process",)  # its CPU time is what the watched run's is compared with


def test_a_healthy_run_in_fp32_is_made_once():
    assert roles(recordings.run("fp32", "fp32")) == []


def test_a_fault_is_traced_up_to_the_step_behind_it():
    traced = next(iter(follow_ups(with_losses(FP16, at_3=math.nan), SPEC)))
    assert (traced.role, traced.spec.instruments, traced.spec.stop_after) == (Role.TRACED, ("nonfinite",), 5)


def test_a_fault_is_traced_in_fp32_too():
    (_, fp32) = follow_ups(with_losses(HEALTHY, at_3=math.nan), SPEC)
    assert (fp32.role, fp32.spec.instruments) == (Role.IN_FP32, ("nonfinite",))


def test_a_fault_under_a_loss_scale_is_looked_for_without_it():
    assert roles(with_losses(FP16, at_3=math.inf)) == [Role.TRACED, Role.UNSCALED, Role.IN_FP32]
    assert roles(with_losses(HEALTHY, at_3=math.inf)) == [Role.TRACED, Role.IN_FP32]


@pytest.mark.parametrize(
    "record",
    [
        replace(HEALTHY, end=RunEnd.FAILED, failure=Failure(kind="RuntimeError", message="")),
        replace(HEALTHY, nonfinite=NonFiniteRecord(num_steps=20, origins=(origin("wo"),))),
        replace(HEALTHY, nonfinite=NonFiniteRecord(num_steps=20, weight_steps=(4,))),
        replace(FP16, steps=recordings.steps([1.0] * 20, 5.0, 0, skipped=frozenset({4, 5, 6, 7}), scale=1.0)),
    ],
    ids=["crash", "origin", "weights", "skips"],
)
def test_what_counts_as_a_fault(record):
    assert is_faulty(record)
    assert Role.TRACED in roles(record)


def test_a_few_skips_at_the_start_are_the_scale_coming_down():
    started = recordings.steps([1.0] * 20, 5.0, 0, skipped=frozenset({0, 1, 2}), scale=65536.0)
    assert replace(FP16, steps=started).longest_skips == 3
    assert not is_faulty(replace(FP16, steps=started))


def test_the_rescue_keeps_the_suspected_modules_in_fp32():
    seen = NonFiniteRecord(
        num_steps=3, origins=(origin("layers.1.wo"), origin(None), origin(""), origin("layers.1.wo"))
    )
    traced = replace(FP16, nonfinite=seen, role=Role.TRACED)
    assert suspects(traced) == ("layers.1.wo",)
    made = rescue(traced, SPEC)
    assert made is not None
    plan = parse_plan(made.spec.plan)
    assert plan.default == "fp16"
    assert [(rule.module, rule.compute) for rule in plan.rules] == [("layers.1.wo", "fp32")]


def test_a_rescue_keeps_the_rules_of_the_plan_it_runs_under():
    given = Plan(default="bf16", rules=(Rule(module="head", compute="fp32"), Rule(module="wo", compute="fp16")))
    traced = replace(FP16, nonfinite=NonFiniteRecord(num_steps=3, origins=(origin("wo"),)), role=Role.TRACED)
    made = rescue(traced, replace(SPEC, plan=to_toml(given)))
    plan = parse_plan(made.spec.plan)
    assert plan.default == "bf16"
    assert [(rule.module, rule.compute) for rule in plan.rules] == [("head", "fp32"), ("wo", "fp32")]


def test_without_a_suspect_there_is_nothing_to_rescue():
    assert rescue(replace(FP16, role=Role.TRACED), SPEC) is None


def test_parameters_in_half_precision_are_beyond_rescue():
    traced = replace(FP16, nonfinite=NonFiniteRecord(num_steps=3, origins=(origin("wo"),)), role=Role.TRACED)
    assert rescue(replace(traced, left_alone="SGD given float16 parameters at train.py:9"), SPEC) is None
    assert rescue(replace(traced, left_alone="torch.autocast entered at train.py:7"), SPEC) is not None


def test_a_finite_loss_is_a_cure_while_the_scale_still_comes_down():
    lost = with_losses(FP16, at_3=math.nan)
    skipping = replace(FP16, steps=recordings.steps([1.0] * 20, 5.0, 0, skipped=frozenset(range(9)), scale=1.0))
    assert not still_fails(skipping, lost)
    assert still_fails(skipping, skipping)
    assert still_fails(lost, lost)
    assert still_fails(replace(FP16, end=RunEnd.FAILED), lost)


def test_a_suspect_that_is_in_fp32_already_is_none():
    seen = replace(FP16, nonfinite=NonFiniteRecord(num_steps=3, origins=(origin("wo"),)))
    assert rescue(seen, SPEC, kept=("wo",)) is None
    assert rescue(seen, SPEC, kept=("head",)).fp32_modules == ("head", "wo")


def test_what_a_healthy_run_in_fp32_makes_too_is_no_suspect():
    log, product = origin("net.attention"), origin("net.wo")
    traced = replace(FP16, nonfinite=NonFiniteRecord(num_steps=5, origins=(log, product)))
    in_fp32 = replace(HEALTHY, nonfinite=NonFiniteRecord(num_steps=20, origins=(log,)))
    assert suspects(traced) == ("net.attention", "net.wo")
    assert suspects(traced, in_fp32=in_fp32) == ("net.wo",)
    assert suspects(traced, in_fp32=with_losses(in_fp32, at_3=math.nan)) == ("net.attention", "net.wo")
    found = rescue(traced, SPEC, in_fp32=in_fp32)
    assert found is not None
    assert found.fp32_modules == ("net.wo",)

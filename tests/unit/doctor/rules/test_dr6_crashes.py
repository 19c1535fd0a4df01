"""The rules on crashes, on records written by hand: one rule a crash, its words, its place, what helps."""

from dataclasses import replace

import pytest

import recordings
from ampwise.doctor.case import Case
from ampwise.doctor.rule import all_rules
from ampwise.plan.file import parse_plan
from ampwise.records.crash import CrashRecord, CrashTensor, DroppedResult
from ampwise.records.finding import Confidence, Severity
from ampwise.records.run import UNTOLD, Failure, Role, RunEnd
from ampwise.records.site import Phase, Site

RULES = [rule for rule in all_rules() if rule.info.id.startswith("DR6")]
SITE = Site(phase=Phase.FORWARD, module="memory", op="index_copy_", file="train.py", line=12)
X = CrashTensor(name="keys", dtype="bf16", device="cpu", shape=(4, 4))
SLOTS = CrashTensor(name="self.slots", dtype="fp32", device="cuda:0", shape=(16, 4))
CRASH = CrashRecord(site=SITE, expression="self.slots.index_copy_(0, at, keys)", tensors=(X, SLOTS))
RUN = recordings.run("bf16", "bf16", role=Role.WATCHED, num_steps=3, end=RunEnd.FAILED, crash=CRASH)
TEXTS = {
    "DR601": "index_copy_(): self and source expected to have the same dtype, but got Float and BFloat16",
    "DR602": "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "DR603": "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
    "DR604": "Attempting to unscale FP16 gradients.",
    "DR605": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which "
    "512.00 MiB is free.",
    "DR606": "list index out of range",
    "DR608": "cuDNN error: CUDNN_STATUS_BAD_PARAM",
    "DR610": "No inf checks were recorded for this optimizer.",
    "DR611": "\"cholesky_cpu\" not implemented for 'BFloat16'",
    "DR612": "value cannot be converted to type c10::Half without overflow",
}


def failing(text, *, kind="RuntimeError", where="train.py:12", **fields):
    return replace(RUN, failure=Failure(kind=kind, message=text, where=where), **fields)


def found(run, *reruns):
    case = Case(recordings.recording([run, *reruns], []))
    return [finding for rule in RULES for finding in rule.check(case)]


def in_fp32(run, *, crashes):
    end = {} if crashes else {"end": RunEnd.STOPPED, "failure": None, "crash": None}
    return replace(run, role=Role.IN_FP32, precision="fp32", variant="fp32", **end)


@pytest.mark.parametrize(("rule", "text"), TEXTS.items())
def test_each_crash_is_one_rules(rule, text):
    (finding,) = found(failing(text))
    assert (finding.rule, finding.severity, finding.site) == (rule, Severity.ERROR, SITE)
    assert finding.evidence.startswith("RuntimeError after 3 steps: ")
    assert "keys bf16 4x4 on cpu" in finding.evidence
    assert finding.message
    assert finding.remedy


def test_a_run_that_ended_well_has_no_crash():
    assert found(replace(RUN, end=RunEnd.STOPPED)) == []
    assert found(replace(failing(TEXTS["DR601"]), end=RunEnd.FINISHED)) == []


def test_dtypes_name_their_tensors_and_write_the_rule():
    (finding,) = found(failing(TEXTS["DR601"]))
    assert finding.message == (
        "index_copy_() in memory (train.py:12) was given keys in bf16 and self.slots in fp32 and takes one dtype only."
    )
    assert "TORCH_SHOW_CPP_STACKTRACES=1" in finding.remedy
    plan = parse_plan(f'version = 1\ndefault = "bf16"\n{finding.plan_rule}')
    assert [(rule.module, rule.compute) for rule in plan.rules] == [("memory", "fp32")]


def test_a_script_with_its_own_precision_gets_no_rule_that_does_not_reach_it():
    (finding,) = found(failing(TEXTS["DR601"], left_alone="torch.autocast entered at train.py:9"))
    assert finding.plan_rule is None
    assert "`torch.autocast(device, enabled=False)`" in finding.remedy


def test_parameters_in_half_precision_are_the_cause_where_there_are_some():
    low = replace(CRASH, low_parameters=(replace(X, name="body.weight", dtype="fp16"),), num_low_parameters=1)
    (finding,) = found(failing(TEXTS["DR601"], crash=low))
    assert "body.weight" in finding.remedy
    assert "model.float()" in finding.remedy


def test_a_dropped_move_is_quoted():
    dropped = DroppedResult(source="keys.to(device)", name="keys", file="train.py", line=8)
    (finding,) = found(failing(TEXTS["DR602"], crash=replace(CRASH, dropped=(dropped,))))
    assert "keys on cpu and self.slots on cuda:0" in finding.message
    assert "`keys.to(device)` at train.py:8 moves nothing" in finding.message
    assert finding.remedy == "Write `keys = keys.to(device)` at train.py:8."


def test_half_precision_parameters_are_named_and_counted():
    low = tuple(CrashTensor(name=f"block.{n}.weight", dtype="fp16", device="cpu", shape=(8,)) for n in range(8))
    (finding,) = found(failing(TEXTS["DR604"], crash=replace(CRASH, low_parameters=low, num_low_parameters=11)))
    assert finding.message.startswith("11 of the optimizer's parameters are in half precision: block.0.weight (fp16)")
    assert "and 7 more" in finding.message


def test_memory_says_how_much_is_short():
    (finding,) = found(failing(TEXTS["DR605"], kind="OutOfMemoryError", end=RunEnd.OUT_OF_MEMORY))
    assert "asked for 2.00 GiB: 1.50 GiB more than is free" in finding.message


def test_a_crash_that_fp32_has_too_is_no_fault_of_precision():
    run = failing(TEXTS["DR606"], kind="IndexError")
    (finding,) = found(run, in_fp32(run, crashes=True))
    assert (finding.rule, finding.confidence) == ("DR606", Confidence.CERTAIN)
    assert "precision has no part in it" in finding.message
    assert finding.evidence.endswith("in fp32 it crashes the same way")


def test_an_exit_is_no_crash():
    run = failing("", kind="exit status 3", where=None)
    (finding,) = found(run, in_fp32(run, crashes=True))
    assert finding.evidence.endswith("in fp32 it ends the same way")
    (finding,) = found(run, in_fp32(run, crashes=False))
    assert finding.evidence.endswith("in fp32 it runs on")


def test_a_crash_that_fp32_does_without_comes_of_the_precision():
    run = failing(TEXTS["DR606"], kind="IndexError")
    (finding,) = found(run, in_fp32(run, crashes=False))
    assert (finding.rule, finding.evidence.endswith("in fp32 it does not crash")) == ("DR607", True)
    assert 'module = "memory"' in finding.plan_rule


def test_a_script_that_asks_is_told_that_nobody_answers():
    (finding,) = found(failing("EOF when reading a line", kind="EOFError"))
    assert finding.remedy.startswith("While the doctor looks nothing can be typed")


def test_without_a_run_in_fp32_nothing_is_claimed():
    (finding,) = found(failing(TEXTS["DR606"]))
    assert (finding.confidence, "precision" in finding.message) == (Confidence.POSSIBLE, False)


@pytest.mark.parametrize(
    ("kind", "words", "remedy"),
    [
        ("exit status 2", "ended itself with exit status 2", "`sys.exit`"),
        ("signal 9", "was ended by signal 9", "out of memory"),
        ("signal 11", "was ended by signal 11", "faulthandler"),
    ],
)
def test_an_end_without_an_exception_is_told_as_one(kind, words, remedy):
    (finding,) = found(failing("usage: train.py", kind=kind, where=None, crash=None, steps=()))
    assert words in finding.message
    assert remedy in finding.remedy
    assert finding.site == Site(phase=Phase.OTHER)
    assert "before the first step ended" in finding.evidence


def test_a_process_that_left_no_record_is_not_said_to_have_made_no_step():
    run = failing("", kind="signal 11", where=None, crash=None, steps=(), reason=UNTOLD)
    (finding,) = found(run)
    assert finding.evidence.startswith("signal 11 at a step that its process could not tell")
    run = failing("", kind="exit status 7", where=None, crash=None, steps=(), reason=UNTOLD)
    (finding,) = found(run)
    assert finding.remedy.startswith("Look for its `os._exit`, or for a library that ends it, and at what it printed")


@pytest.mark.parametrize("kind", ["SyntaxError", "ModuleNotFoundError", "FileNotFoundError"])
def test_what_does_not_start_is_told_as_what_it_is(kind):
    (finding,) = found(failing("no such thing", kind=kind, crash=None))
    assert (finding.rule, finding.site.where) == ("DR609", "train.py:12")
    assert f"{kind}: no such thing" in finding.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unscale_() has already been called on this optimizer since the last update().", "unscaled twice"),
        ("step() has already been called since the last update().", "without an update"),
        ("Attempted step but _scale is None.", "scaled no loss yet"),
    ],
)
def test_what_a_scalers_refusal_means(text, words):
    (finding,) = found(failing(text))
    assert words in finding.message

import pytest

import speeds
from ampwise.doctor.rules.dr407_sync_in_loop import RULE
from ampwise.records.finding import Confidence, Severity
from ampwise.records.site import Phase, Site
from ampwise.records.syncs import SyncKind, SyncPlace, SyncRecord


def place(call=".item()", *, kind=SyncKind.SCALAR, count=2, stall_ms=None, phase=Phase.OTHER):
    site = Site(phase=phase, op="aten._local_scalar_dense", file="train.py", line=31)
    return SyncPlace(site=site, kind=kind, call=call, count=count, num_steps=1, stall_ms=stall_ms)


def case(*places, is_real=False, steps=(1, 2)):
    record = SyncRecord(steps=steps, places=places, is_real=is_real, cost_ms=1.0)
    return (speeds.on_cuda if is_real else speeds.case)(speeds.run(syncs=record))


def test_on_a_cpu_what_would_wait_is_news():
    (finding,) = RULE.check(case(place()))
    assert finding.message == "`.item()` would wait for a GPU once a step. On this CPU it costs nothing."
    assert finding.site.where == "train.py:31"
    assert finding.evidence == "2 times in 2 steps watched"
    assert "total += loss.detach()" in finding.remedy
    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.LIKELY)


def test_a_wait_that_takes_time_is_a_warning():
    (finding,) = RULE.check(case(place(stall_ms=40.0), is_real=True))
    assert finding.message == "`.item()` waits for the device once a step."
    assert finding.evidence.startswith("2 times in 2 steps watched; 20 ms a step, ")
    assert finding.severity is Severity.WARNING
    (short,) = RULE.check(case(place(stall_ms=0.2, count=6), is_real=True))
    assert "3 times a step" in short.message
    assert short.severity is Severity.INFO


@pytest.mark.parametrize(
    ("one", "remedy"),
    [
        (place("if"), "torch.where"),
        (place(".cpu()", kind=SyncKind.COPY), "after the loop"),
        (place("print", kind=SyncKind.PRINT), "every hundredth step"),
        (place("print"), "every hundredth step"),
        (place("one number read"), "what the line calls"),
        (place("nonzero", kind=SyncKind.SHAPE), "Keep the shape"),
        (place("torch.cuda.synchronize()", kind=SyncKind.EXPLICIT), "out of the loop"),
        (place("aten.x", kind=SyncKind.OTHER), "on the device"),
        (place(phase=Phase.OPTIMIZER), "from ampwise import GradScaler"),
        (place("one number read", phase=Phase.FORWARD), "check of a mask"),
    ],
)
def test_each_kind_has_its_replacement(one, remedy):
    (finding,) = RULE.check(case(one))
    assert remedy in finding.remedy


def test_a_decision_is_called_one():
    (finding,) = RULE.check(case(place("if")))
    assert finding.message.startswith("`if` on a tensor would wait")
    (other,) = RULE.check(case(place("one number read")))
    assert other.message.startswith("Reading one number would wait")


def test_a_read_now_and_then_is_told_and_is_no_finding():
    rare = case(place(count=1))
    assert list(RULE.check(rare)) == []
    assert list(RULE.reassure(rare)) == ["the loop would wait for a GPU 0.5 times a step (2 steps watched)"]


def test_without_the_section_it_is_silent():
    for bare in (speeds.case(speeds.run()), case(place(), steps=())):
        assert list(RULE.check(bare)) == list(RULE.reassure(bare)) == []

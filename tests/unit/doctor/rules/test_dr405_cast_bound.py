from dataclasses import replace

import pytest

import speeds
from ampwise.doctor.rules.dr405_cast_bound import RULE
from ampwise.records.casts import CastOrigin, CastPlace, CastRecord, RepeatedCast
from ampwise.records.finding import Severity
from ampwise.records.site import Phase, Site

SITE = Site(phase=Phase.FORWARD, module="net.fc", op="aten._to_copy", file="train.py", line=12)


def casts(ms=20.0, *, num_bytes=8 * 2**20, origin=CastOrigin.AUTOCAST, repeated=()):
    place = CastPlace(
        site=SITE, origin=origin, source="fp32", target="bf16", reason="aten.addmm", count=6, bytes=num_bytes, ms=ms
    )
    given = {"steps": (3, 4), "calls": (), "casts": (place,), "repeated": repeated, "num_operators": 90}
    return CastRecord(operator_bytes=2 * num_bytes, operator_ms=100.0, cost_ms=1.0, **given)


def check(record, **fields):
    return list(RULE.check(speeds.case(speeds.run(casts=record, **fields))))


def test_the_share_and_the_largest_place_are_told():
    (finding,) = check(casts())
    assert finding.message == "Casts between formats take 20% of the computing time."
    assert finding.site == SITE
    assert finding.evidence == (
        "3 casts a step move 4.00 MiB, 50% of all; the most at aten._to_copy in net.fc, fp32 to bf16 for aten.addmm: "
        "4.00 MiB a step"
    )
    assert finding.severity is Severity.INFO
    assert check(casts(40.0))[0].severity is Severity.WARNING


def test_weights_cast_again_and_the_scripts_own_casts_have_remedies_of_their_own():
    again = RepeatedCast(parameter="net.fc.weight", target="bf16", num_per_step=3.0, bytes=9)
    (finding,) = check(casts(repeated=(again,)))
    assert "net.fc.weight is cast 3 times a step" in finding.evidence
    assert "cache_enabled=False" in finding.remedy
    (own,) = check(casts(origin=CastOrigin.SCRIPT))
    assert ".to(dtype)" in own.remedy


@pytest.mark.parametrize("record", [casts(5.0), casts(num_bytes=1000), None], ids=["small", "tiny", "none"])
def test_few_casts_are_no_finding(record):
    assert check(record) == []


def test_few_casts_of_a_step_that_crashed_are_no_finding():
    assert check(replace(casts(num_bytes=1000), steps=())) == []


def test_in_a_step_that_waits_casts_matter_less():
    assert check(casts(), kernels=speeds.on_cpu(operator_ms=20.0)) == []
    assert len(check(casts(), kernels=speeds.on_cpu())) == 1


def test_emulated_times_say_nothing():
    assert check(casts(), variant="emulated fp16") == []


def test_on_a_gpu_the_profiler_says_the_share():
    run = speeds.run(kernels=speeds.on_gpu(cast_ms=45.0))
    (finding,) = RULE.check(speeds.on_cuda(run))
    assert "take 50%" in finding.message
    assert finding.evidence == "step 10: 45 of 90 ms"


def test_a_small_share_is_told():
    assert list(RULE.reassure(speeds.case(speeds.run(casts=casts(2.0))))) == ["casts take 2.0% of the computing time"]
    assert list(RULE.reassure(speeds.case(speeds.run()))) == []
    few = speeds.case(speeds.run(casts=casts(40.0, num_bytes=2000)))
    assert list(RULE.reassure(few)) == ["casts take 40.0% of the computing time, and move 1000 B a step"]
    assert list(RULE.reassure(speeds.case(speeds.run(casts=casts(40.0))))) == []

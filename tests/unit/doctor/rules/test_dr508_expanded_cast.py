import memories
from ampwise.doctor.rules.dr508_expanded_cast import RULE
from ampwise.records.casts import CastOrigin, CastPlace, CastRecord
from ampwise.records.site import Phase, Site

SITE = Site(phase=Phase.FORWARD, module="attn", op="aten._to_copy", file="model.py", line=9)


def found(expanded, *, steps=(3, 4)):
    place = CastPlace(
        site=SITE,
        origin=CastOrigin.AUTOCAST,
        source="fp32",
        target="fp16",
        reason="aten.bmm",
        count=2,
        bytes=24 * 2**20,
        ms=None,
        expanded_bytes=expanded,
    )
    given = {"casts": (place,), "calls": (), "num_operators": 9, "operator_bytes": 9, "operator_ms": None}
    return list(RULE.check(memories.case(casts=CastRecord(steps=steps, cost_ms=0.0, **given))))


def test_the_repetitions_are_told_in_bytes_with_the_cast_to_write():
    (finding,) = found(16 * 2**20)
    assert finding.message == (
        "The cast to fp16 for aten.bmm at aten._to_copy in attn writes out an expanded tensor: 8.00 MiB more a step "
        "than it holds."
    )
    assert finding.evidence == "1 a step from fp32, 12.0 MiB read and written, 8.00 MiB of it repetitions"
    assert "x.to(torch.float16).expand(...)" in finding.remedy
    assert finding.site == SITE


def test_small_ones_and_no_section_are_no_finding():
    assert found(2**20) == []
    assert found(16 * 2**20, steps=()) == []
    assert list(RULE.check(memories.case())) == []

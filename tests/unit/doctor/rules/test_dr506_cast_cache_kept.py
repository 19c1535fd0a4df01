import memories
from ampwise.doctor.rules.dr506_cast_cache_kept import RULE
from ampwise.records.memory import MemoryRecord


def found(casts):
    ends = memories.ends(64 * 2**20, 64 * 2**20, casts=casts)
    return list(RULE.check(memories.case(MemoryRecord(step_ends=ends))))


def test_casts_that_outlive_the_step_are_told_in_bytes():
    (finding,) = found(16 * 2**20)
    assert finding.message == "autocast's cache still holds 16.0 MiB of casts when a step has ended."
    assert finding.evidence.startswith("after step 5: 16.0 MiB of 64.0 MiB live")
    assert "around the forward pass alone" in finding.remedy


def test_few_bytes_and_no_section_are_no_finding():
    assert found(0) == found(1000) == []
    assert list(RULE.check(memories.case())) == []
    assert list(RULE.check(memories.case(MemoryRecord()))) == []

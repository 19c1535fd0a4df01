import pytest

from ampwise.records.process import ProcessRecord, StepParts

PARTS = StepParts(data_ms=3.0, forward_ms=2.0, backward_ms=4.0, optimizer_ms=1.0, other_ms=2.0)
RECORD = ProcessRecord(
    num_steps=4, wall_ms=48.0, user_ms=30.0, system_ms=10.0, minor_faults=1000, major_faults=0, parts=PARTS
)
EMPTY = ProcessRecord(num_steps=0, wall_ms=0.0, user_ms=0.0, system_ms=0.0, minor_faults=0, major_faults=0)


def test_shares():
    assert PARTS.total_ms == 12.0
    assert RECORD.faults_per_step == 250.0
    assert RECORD.system_share == 0.25
    assert RECORD.data_share == pytest.approx(0.25)


def test_a_run_too_short_has_none():
    assert (EMPTY.faults_per_step, EMPTY.system_share, EMPTY.data_share) == (0.0, 0.0, 0.0)

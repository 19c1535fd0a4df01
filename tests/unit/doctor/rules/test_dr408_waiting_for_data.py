import pytest

import speeds
from ampwise.doctor.rules.dr408_waiting_for_data import RULE
from ampwise.records.finding import Severity
from ampwise.records.process import StepParts


def case(kernels=None, **fields):
    return speeds.case(speeds.run(process=speeds.process(**fields), kernels=kernels))


def test_the_wait_is_told_beside_the_other_parts():
    (finding,) = RULE.check(case(data_ms=60.0, has_loader=True))
    assert finding.message == "The loop waits for its DataLoader in 40% of the step."
    assert finding.evidence == "of 150 ms a step: data 60, forward 30, backward 50, optimizer 5, other 5 ms"
    assert "num_workers=4" in finding.remedy


def test_a_loader_with_workers_is_not_told_to_take_some():
    (finding,) = RULE.check(case(data_ms=60.0, has_loader=True, num_workers=2))
    assert finding.remedy.startswith("It has 2 workers already. Keep them from epoch to epoch")
    assert "num_workers" not in finding.remedy


def test_time_in_which_nothing_is_computed_is_told_where_there_is_no_loader():
    (finding,) = RULE.check(case(speeds.on_cpu(operator_ms=20.0), other_ms=285.0))
    assert finding.message.startswith("77% of the step is spent outside of model, backward and optimizer")
    assert finding.severity is Severity.INFO


def test_the_few_milliseconds_around_a_tiny_model_are_no_finding():
    idle = speeds.on_cpu(operator_ms=20.0)

    def small(other_ms):
        parts = StepParts(data_ms=0.0, forward_ms=0.3, backward_ms=1.7, optimizer_ms=0.6, other_ms=other_ms)
        return case(idle, parts=parts)

    assert list(RULE.check(small(4.9))) == []
    assert len(list(RULE.check(small(5.1)))) == 1


@pytest.mark.parametrize("kernels", [None, speeds.on_cpu()], ids=["no profile", "computing"])
def test_a_model_without_modules_is_not_blamed(kernels):
    assert list(RULE.check(case(kernels, other_ms=285.0))) == []


def test_a_short_wait_is_told_and_is_no_finding():
    short = case(data_ms=10.0, has_loader=True)
    assert list(RULE.check(short)) == []
    assert list(RULE.reassure(short)) == ["waiting for the DataLoader takes 10% of a step"]


def test_without_parts_it_is_silent():
    for bare in (speeds.case(speeds.run(process=None)), case(parts=None)):
        assert list(RULE.check(bare)) == list(RULE.reassure(bare)) == []

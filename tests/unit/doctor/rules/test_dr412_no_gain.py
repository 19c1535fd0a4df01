import pytest

import speeds
from ampwise.doctor.rules.dr412_no_gain import RULE
from ampwise.records.finding import Severity
from ampwise.records.nonfinite import NonFiniteRecord


def check(watched, fp32, case=speeds.case):
    return list(RULE.check(case(watched, fp32)))


def run(cpu_ms, *products, **fields):
    return speeds.run(cpu_ms=cpu_ms, kernels=speeds.on_cpu(*products, product_ms=20.0), **fields)


def test_no_gain_is_told_with_both_times_and_every_cause():
    (finding,) = check(run(95.0), speeds.fp32(cpu_ms=96.0))
    assert finding.message == (
        "bf16 gains hardly any time over fp32 (1.01 times as fast). The largest cause: operators that the format does "
        "not make faster (70%)."
    )
    assert finding.evidence == (
        "95 ms of CPU time a step, 96 ms in fp32; operators that the format does not make faster 70%, "
        "matrix products themselves 20%, Python between the operators 10%, waiting for data 0%, "
        "casts between formats 0%"
    )
    assert "torch.compile(model)" in finding.remedy
    assert finding.severity is Severity.INFO


def test_a_step_that_is_slower_is_a_warning():
    (finding,) = check(run(150.0), speeds.fp32(cpu_ms=90.0))
    assert finding.message.startswith("bf16 is slower than fp32, 1.67 times as long.")
    assert finding.severity is Severity.WARNING


def test_waiting_for_data_makes_no_format_slower_than_another():
    watched = run(150.0, process=speeds.process(150.0, data_ms=400.0))
    (finding,) = check(watched, speeds.fp32(cpu_ms=90.0))
    assert "waiting for data" not in finding.message + finding.evidence
    assert "Python" not in finding.evidence
    assert finding.severity is Severity.INFO  # the step takes as long as its data does


def test_a_slower_step_of_tiny_operators_is_a_remark():
    tiny = speeds.on_cpu(product_ms=20.0, num_operators=9000)
    (finding,) = check(speeds.run(cpu_ms=150.0, kernels=tiny), speeds.fp32(cpu_ms=90.0))
    assert "is slower than fp32" in finding.message
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize(
    ("kernels", "process", "cause"),
    [
        ({"operator_ms": 30.0}, {}, "Python between the operators"),
        ({"operator_ms": 30.0}, {"data_ms": 400.0}, "waiting for data"),
        ({"num_operators": 9000}, {}, "operators too small to matter"),
        ({"product_ms": 80.0}, {}, "matrix products themselves"),
    ],
)
def test_the_largest_cause_is_named(kernels, process, cause):
    watched = speeds.run(kernels=speeds.on_cpu(**kernels), process=speeds.process(95.0, **process))
    (finding,) = check(watched, speeds.fp32(cpu_ms=96.0))
    assert f"The largest cause: {cause}" in finding.message


def test_on_a_gpu_the_median_step_is_compared():
    watched = speeds.run(time_ms=100.0, kernels=speeds.on_gpu(cast_ms=70.0, product_ms=10.0))
    (finding,) = check(watched, speeds.fp32(time_ms=101.0), speeds.on_cuda)
    assert "casts between formats" in finding.message
    assert "CPU time" not in finding.evidence


@pytest.mark.parametrize(
    ("watched", "fp32"),
    [
        (run(90.0), speeds.fp32(cpu_ms=180.0)),
        (run(90.0, variant="emulated fp16"), speeds.fp32(cpu_ms=20.0)),
        (run(90.0, speeds.product(dtype="fp32")), speeds.fp32(cpu_ms=90.0)),
        (run(90.0, nonfinite=NonFiniteRecord(num_steps=20, guard_ms=30.0)), speeds.fp32(cpu_ms=80.0)),
        (speeds.run(cpu_ms=900.0, kernels=speeds.on_cpu()), speeds.fp32(cpu_ms=90.0)),
        (speeds.run(), speeds.fp32()),
        (run(4.0), speeds.fp32(cpu_ms=2.0)),
    ],
    ids=["gains", "emulated", "fp32 products", "watching took it", "the hardware's fault", "no profile", "too short"],
)
def test_it_is_silent_where_there_is_a_gain_or_another_reason(watched, fp32):
    assert check(watched, fp32) == []


def test_it_is_silent_without_the_fp32_run():
    assert list(RULE.check(speeds.case(run(95.0)))) == list(RULE.reassure(speeds.case(run(95.0)))) == []


def test_the_gain_is_told():
    told = list(RULE.reassure(speeds.case(run(90.0), speeds.fp32(cpu_ms=180.0))))
    assert told == ["bf16 is 2.00 times as fast as fp32: 90 ms of CPU time a step, 180 ms in fp32"]

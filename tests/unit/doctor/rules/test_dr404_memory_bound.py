import pytest

import speeds
from ampwise.doctor.rules.dr404_memory_bound import RULE

BOUND = {"product_ms": 20.0, "kernel_bytes": 120 * 10**9}
"""In 90 ms: 1,333 GB/s of the A100's 2,039."""


def found(name="NVIDIA A100-SXM4-80GB", **fields):
    run = speeds.run(kernels=speeds.on_gpu(name=name, **{**BOUND, **fields}))
    return list(RULE.check(speeds.on_cuda(run, name=name)))


def test_the_roofline_is_told_in_figures():
    (finding,) = found()
    assert "bound by NVIDIA A100 80GB's memory: only 22% of its time is matrix products" in finding.message
    assert (
        "needs 153 to be bound by products; 1.33e+03 of 2039 GB/s; most time in aten.gelu (20 ms)" in finding.evidence
    )


@pytest.mark.parametrize(
    "fields", [{"product_ms": 60.0}, {"kernel_bytes": 10**9}, {"name": "NVIDIA B200"}, {"name": "unknown"}]
)
def test_it_is_silent_above_the_ridge_or_where_peaks_are_not_known(fields):
    assert found(**fields) == []


def test_it_is_silent_on_a_cpu_and_without_a_profile():
    for run in (speeds.run(kernels=speeds.on_cpu(**BOUND)), speeds.run()):
        assert list(RULE.check(speeds.case(run))) == []

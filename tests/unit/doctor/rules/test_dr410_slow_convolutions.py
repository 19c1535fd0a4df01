import pytest

import speeds
from ampwise.doctor.rules.dr410_slow_convolutions import RULE

GROUPED = speeds.product(4096, 4, 36, op="aten.convolution", batch=32, groups=32, num_spatial_dims=2, ms=40.0)
DEPTHWISE = speeds.product(4096, 1, 9, op="aten.convolution", batch=64, groups=64, num_spatial_dims=2, ms=40.0)
VOLUME = speeds.product(4096, 64, 216, op="aten.convolution", num_spatial_dims=3, ms=40.0)
PLAIN = speeds.product(4096, 64, 576, op="aten.convolution", num_spatial_dims=2, ms=40.0)


def found(*products, tensor_core_ms=10.0):
    run = speeds.run(kernels=speeds.on_gpu(*products, tensor_core_ms=tensor_core_ms))
    return list(RULE.check(speeds.on_cuda(run)))


@pytest.mark.parametrize(
    ("one", "words"),
    [(GROUPED, "Grouped"), (DEPTHWISE, "Depthwise"), (VOLUME, "Convolutions in three dimensions")],
)
def test_each_kind_is_called_by_its_name(one, words):
    (finding,) = found(one)
    assert finding.message.startswith(words)
    assert "in bf16 take 44% of the GPU's time, mostly without tensor cores" in finding.message
    assert "17% of the products' time ran on tensor cores" in finding.evidence
    assert f"in {one.groups} groups, 40 ms" in finding.evidence


def test_plain_short_and_fast_ones_are_no_finding():
    assert found(PLAIN) == []
    assert found(GROUPED, tensor_core_ms=50.0) == []
    assert found(speeds.product(groups=32, num_spatial_dims=2, ms=4.0)) == []
    assert found(speeds.product(groups=32, num_spatial_dims=2, dtype="fp32", ms=40.0)) == []


def test_it_is_silent_on_a_cpu_and_without_a_profile():
    for run in (speeds.run(kernels=speeds.on_cpu(GROUPED)), speeds.run()):
        assert list(RULE.check(speeds.case(run))) == []

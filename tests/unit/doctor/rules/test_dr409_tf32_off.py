import pytest

import speeds
from ampwise.doctor.rules.dr409_tf32_off import RULE
from ampwise.records.kernels import Tf32Switches

FP32 = speeds.product(dtype="fp32", ms=50.0)
CONV = speeds.product(dtype="fp32", ms=50.0, num_spatial_dims=2)


def found(*products, matmul="none", conv="none", name="NVIDIA A100-SXM4-80GB"):
    switches = Tf32Switches(matmul=matmul, conv=conv)
    run = speeds.run(kernels=speeds.on_gpu(*products, name=name, tf32=switches))
    return list(RULE.check(speeds.on_cuda(run, name=name)))


def test_fp32_products_without_tf32_are_told():
    (finding,) = found(FP32)
    assert finding.message == "fp32 products run without NVIDIA A100 80GB's tensor cores, for TF32 is off."
    assert (
        finding.evidence == "step 10: 50 of 90 ms are fp32 products; the switches say none for products, none for conv"
    )
    assert "fp32_precision = 'tf32'" in finding.remedy
    assert len(found(CONV, conv="ieee")) == 1


@pytest.mark.parametrize(
    ("products", "fields"),
    [
        ((FP32,), {"matmul": "tf32"}),
        ((CONV,), {}),
        ((speeds.product(),), {}),
        ((speeds.product(dtype="fp32", ms=5.0),), {}),
        ((FP32,), {"name": "Tesla T4"}),
    ],
    ids=["on", "torch's default for conv", "bf16", "short", "no tf32"],
)
def test_where_tf32_is_on_or_of_no_use_nothing_is_found(products, fields):
    assert found(*products, **fields) == []


def test_switches_that_clash_are_told_on_any_device():
    switches = Tf32Switches(matmul="tf32", conv="none", clash="reading allow_tf32 now raises")
    (finding,) = RULE.check(speeds.case(speeds.run(kernels=speeds.on_cpu(tf32=switches))))
    assert finding.evidence == "reading allow_tf32 now raises"
    assert "one of them only" in finding.remedy


def test_without_a_profile_it_is_silent():
    assert list(RULE.check(speeds.on_cuda(speeds.run()))) == []
    assert list(RULE.check(speeds.on_cuda(speeds.run(kernels=speeds.on_gpu(FP32))))) == []

import pytest

import speeds
from ampwise.doctor.rules.dr401_precision_without_hardware import RULE
from ampwise.records.casts import CastOrigin, CastPlace, CastRecord
from ampwise.records.nonfinite import NonFiniteRecord
from ampwise.records.site import Phase, Site

FP16 = (speeds.product(dtype="fp16"),)
SLOW = speeds.run("fp16", cpu_ms=900.0, kernels=speeds.on_cpu(*FP16))


def found(*runs, **where):
    return list(RULE.check(speeds.case(*runs, **where)))


def test_a_cpu_that_is_slower_than_in_fp32_is_named_with_both_times():
    (finding,) = found(SLOW, speeds.fp32(cpu_ms=90.0))
    assert finding.message == "This CPU (AMD EPYC) computes these products slower in fp16 than in fp32."
    assert "900 ms of CPU time a step, 90 ms in fp32: 10 times as long" in finding.evidence
    assert "67% of it in matrix products" in finding.evidence
    assert "--precision fp32" in finding.remedy


def casts(share):
    place = CastPlace(
        site=Site(phase=Phase.FORWARD),
        origin=CastOrigin.AUTOCAST,
        source="fp32",
        target="fp16",
        reason=None,
        count=1,
        bytes=10,
        ms=share,
    )
    given = {"steps": (3,), "calls": (), "casts": (place,), "num_operators": 1, "operator_bytes": 100}
    return CastRecord(operator_ms=1.0, cost_ms=0.0, **given)


@pytest.mark.parametrize(
    "runs",
    [
        (SLOW, speeds.fp32(cpu_ms=600.0)),
        (SLOW,),
        (speeds.run("fp16", cpu_ms=900.0), speeds.fp32()),
        (speeds.run("fp16", cpu_ms=900.0, kernels=speeds.on_cpu(*FP16, product_ms=20.0)), speeds.fp32(cpu_ms=90.0)),
        (speeds.run("fp16", cpu_ms=900.0, kernels=speeds.on_cpu(*FP16), casts=casts(0.4)), speeds.fp32(cpu_ms=90.0)),
        (
            speeds.run(
                "fp16",
                cpu_ms=900.0,
                kernels=speeds.on_cpu(*FP16),
                nonfinite=NonFiniteRecord(num_steps=20, guard_ms=800.0),
            ),
            speeds.fp32(cpu_ms=90.0),
        ),
        (
            speeds.run("fp16", variant="emulated fp16", cpu_ms=900.0, kernels=speeds.on_cpu(*FP16)),
            speeds.fp32(cpu_ms=90.0),
        ),
    ],
    ids=["not slow", "no fp32", "no kernels", "not in products", "casts", "watching took it", "emulated"],
)
def test_a_cpu_is_not_blamed_where_others_may_be(runs):
    assert found(*runs) == []


@pytest.mark.parametrize(
    ("name", "format_", "instead"),
    [
        ("Tesla T4", "bf16", "fp16"),
        ("NVIDIA GeForce GTX 1650", "fp16", "fp32"),
        ("Tesla V100-SXM2-16GB", "bf16", "fp16"),
    ],
)
def test_a_gpu_without_tensor_cores_for_the_format_is_named(name, format_, instead):
    run = speeds.run(format_, kernels=speeds.on_gpu(speeds.product(dtype=format_), name=name))
    (finding,) = RULE.check(speeds.on_cuda(run, speeds.fp32(), name=name))
    assert f"no tensor cores for {format_}" in finding.message
    assert f"--precision {instead}`" in finding.remedy
    assert "its tensor cores multiply " in finding.evidence
    assert "ms in fp32" in finding.evidence


def test_a_gpu_that_has_them_or_that_nobody_knows_is_not_named():
    assert list(RULE.check(speeds.on_cuda(speeds.run(kernels=speeds.on_gpu())))) == []
    unknown = speeds.run(kernels=speeds.on_gpu(name="Some GPU"))
    assert list(RULE.check(speeds.on_cuda(unknown, name="Some GPU"))) == []

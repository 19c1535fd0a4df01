"""Recordings written by hand of how fast a training was, and what of the machine it used."""

from dataclasses import replace

import recordings
from ampwise.doctor.case import Case
from ampwise.records.kernels import KernelKind, KernelRecord, MatrixProduct, OperatorTime
from ampwise.records.process import ProcessRecord, StepParts
from ampwise.records.run import Role

PRODUCT = MatrixProduct(op="aten.addmm", dtype="bf16", m=512, n=1024, k=1024, batch=1, count=4, ms=60.0)


def product(m=512, n=1024, k=1024, *, dtype="bf16", ms=60.0, **fields):
    return replace(PRODUCT, m=m, n=n, k=k, dtype=dtype, ms=ms, **fields)


def on_cpu(*products, **fields):
    """A step of 100 ms on a CPU, 60 of them in products."""
    given = {
        "step": 10,
        "device": "cpu",
        "instructions": "AVX512",
        "wall_ms": 100.0,
        "num_operators": 200,
        "operator_ms": 90.0,
        "product_ms": 60.0,
        "products": products or (PRODUCT,),
        **fields,
    }
    return KernelRecord(**given)


def on_gpu(*products, name="NVIDIA A100-SXM4-80GB", **fields):
    """A step of 100 ms on a GPU, which is busy for 90 of them, 60 in products on tensor cores."""
    given = {
        "device": "cuda",
        "device_name": name,
        "num_kernels": 900,
        "device_busy_ms": 90.0,
        "tensor_core_ms": 55.0,
        "operators": (
            OperatorTime(op="aten.gelu", kind=KernelKind.ELEMENTWISE, dtype="bf16", count=6, host_ms=1, device_ms=20),
        ),
        **fields,
    }
    return on_cpu(*products, **given)


def process(cpu_ms=90.0, *, data_ms=0.0, other_ms=5.0, **fields):
    """Eight steps of so much CPU time each."""
    parts = StepParts(data_ms=data_ms, forward_ms=30.0, backward_ms=50.0, optimizer_ms=5.0, other_ms=other_ms)
    given = {"wall_ms": 800.0, "user_ms": 8 * cpu_ms, "system_ms": 0.0, "minor_faults": 80, "parts": parts, **fields}
    return ProcessRecord(num_steps=8, major_faults=0, **given)


def run(precision="bf16", *, time_ms=100.0, cpu_ms=90.0, role=Role.WATCHED, variant=None, **sections):
    given = {"process": process(cpu_ms), **sections}
    return recordings.run(variant or precision, precision, time_ms=time_ms, role=role, num_steps=20, **given)


def fp32(*, time_ms=200.0, cpu_ms=180.0):
    return run("fp32", time_ms=time_ms, cpu_ms=cpu_ms, role=Role.IN_FP32)


def case(watched, *reruns, device="cpu", device_name="AMD EPYC", **environment):
    """The case of a run on a device."""
    made = recordings.recording([watched, *reruns], [])
    where = replace(made.environment, device=device, device_name=device_name, **environment)
    return Case(replace(made, environment=where, comparison=None))


def on_cuda(watched, *reruns, name="NVIDIA A100-SXM4-80GB"):
    return case(watched, *reruns, device="cuda:0", device_name=name)

import pytest

from ampwise.formats import FORMATS
from ampwise.formats.hardware import GPUS
from ampwise.runtime.hardware.facts import DeviceFacts, DeviceKind, Measured, is_native, native_instructions


def gpu(name="NVIDIA A100", capability=(8, 0), **rest):
    return DeviceFacts(device="cuda:0", kind=DeviceKind.CUDA, name=name, capability=capability, **rest)


def cpu(*instructions, **rest):
    return DeviceFacts(device="cpu", kind=DeviceKind.CPU, name="a CPU", instructions=frozenset(instructions), **rest)


def natives(facts):
    return [name for name in FORMATS if is_native(name, facts)]


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("Tesla P100-PCIE-16GB", (6, 0), ["fp64", "fp32"]),
        ("Tesla V100-SXM2-16GB", (7, 0), ["fp64", "fp32", "fp16"]),
        ("Tesla T4", (7, 5), ["fp64", "fp32", "fp16"]),
        ("NVIDIA GeForce GTX 1660 Ti", (7, 5), ["fp64", "fp32"]),
        ("NVIDIA A100-SXM4-40GB", (8, 0), ["fp64", "fp32", "tf32", "bf16", "fp16"]),
        ("NVIDIA H100 80GB HBM3", (9, 0), ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"]),
        ("a GPU nobody can reach", None, ["fp64", "fp32"]),
    ],
)
def test_natives_of_nvidia_gpus(name, capability, expected):
    assert natives(gpu(name, capability)) == expected


@pytest.mark.parametrize("row", [row for row in GPUS.values() if row.compute_capability], ids=lambda row: row.key)
def test_tensor_cores_agree_with_the_table_of_gpus(row):
    facts = gpu(row.name, row.compute_capability)
    assert facts.has_tensor_cores == bool(row.tensor_core_formats)
    assert facts.is_gtx_16 == ("fp16" in row.faults)
    assert set(natives(facts)) == {"fp64", "fp32", *row.tensor_core_formats}


def test_a_name_alone_makes_no_gtx_16():
    assert not gpu("NVIDIA T1000", (8, 9)).is_gtx_16
    assert not gpu("Tesla T4", (7, 5)).is_gtx_16


@pytest.mark.parametrize(
    ("instructions", "bf16", "fp16"),
    [
        ((), (), ()),
        (("avx2", "avx512_f"), (), ()),
        (("avx512_bf16",), ("avx512_bf16",), ()),
        (("amx_bf16", "avx512_bf16", "avx512_fp16"), ("avx512_bf16", "amx_bf16"), ("avx512_fp16",)),
        (("bf16", "asimdhp"), ("bf16",), ("asimdhp",)),
    ],
)
def test_natives_of_cpus(instructions, bf16, fp16):
    facts = cpu(*instructions)
    assert native_instructions("bf16", facts) == bf16
    assert native_instructions("fp16", facts) == fp16
    assert is_native("bf16", facts) == bool(bf16)
    assert is_native("fp16", facts) == bool(fp16)
    assert not is_native("tf32", facts)
    assert not is_native("fp8_e4m3", facts)


def test_an_amd_gpu_has_tf32_by_its_architecture_and_the_rest_by_measurement():
    measured = {"bf16": Measured(ratio=4.0, size=1024), "fp16": Measured(ratio=0.9, size=1024)}
    facts = DeviceFacts(
        device="cuda:0",
        kind=DeviceKind.ROCM,
        name="MI300X",
        instructions=frozenset({"gfx942:sramecc+"}),
        measured=measured,
    )
    assert natives(facts) == ["fp32", "tf32", "bf16"]
    older = DeviceFacts(device="cuda:0", kind=DeviceKind.ROCM, name="MI210", instructions=frozenset({"gfx90a"}))
    assert natives(older) == ["fp32"]


def test_other_accelerators_are_judged_by_measurement():
    facts = DeviceFacts(
        device="mps", kind=DeviceKind.OTHER, name="MPS", measured={"fp16": Measured(ratio=1.0, size=1024)}
    )
    assert natives(facts) == ["fp32", "fp16"]

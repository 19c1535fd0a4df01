import pytest

from ampwise.formats import FORMATS
from ampwise.formats.hardware import (
    CPU_INSTRUCTIONS,
    GPUS,
    find_gpu,
    is_gtx_16,
    natively_fast_formats,
)


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((6, 1), ()),
        ((7, 0), ("fp16",)),
        ((7, 5), ("fp16",)),
        ((8, 0), ("tf32", "bf16", "fp16")),
        ((8, 7), ("tf32", "bf16", "fp16")),
        ((8, 9), ("tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2")),
        ((9, 0), ("tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2")),
        ((12, 1), ("tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2")),
    ],
)
def test_formats_by_capability(capability, expected):
    assert natively_fast_formats(capability) == expected


def test_a_gtx_16_has_no_tensor_cores_though_its_capability_says_so():
    name = "NVIDIA GeForce GTX 1660 SUPER"
    assert natively_fast_formats((7, 5), name=name) == ()
    gpu = find_gpu(name)
    assert gpu is GPUS["gtx-1660-super"]
    assert "NaN" in gpu.faults["fp16"]


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA GeForce RTX 2060", "Quadro T2000x", "NVIDIA A16"])
def test_others_are_not_taken_for_a_gtx_16(name):
    assert not is_gtx_16(name)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("Tesla V100-PCIE-16GB", "v100-16gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 2080", "rtx-2080"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H200", "h200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("a100-80gb", "a100-80gb"),
        ("H100_80GB", "h100-80gb"),
    ],
)
def test_the_drivers_names_find_their_rows(name, key):
    assert find_gpu(name) is GPUS[key]


def test_memory_tells_models_apart_whose_names_do_not():
    assert find_gpu("NVIDIA A100", total_bytes=84 * 10**9) is GPUS["a100-80gb"]
    assert find_gpu("NVIDIA A100", total_bytes=42 * 10**9) is GPUS["a100-40gb"]
    assert find_gpu("NVIDIA A100") is GPUS["a100-40gb"]


def test_an_unknown_gpu_has_no_row():
    assert find_gpu("NVIDIA GeForce GT 710") is None


def test_every_row_names_known_formats_and_finds_itself():
    for key, gpu in GPUS.items():
        assert set(gpu.tensor_core_formats) | set(gpu.faults) <= set(FORMATS)
        assert find_gpu(gpu.name) is gpu
        assert find_gpu(key) is gpu
        assert gpu.memory_bytes == gpu.memory_gib << 30


def test_cpu_rows_name_known_formats():
    assert {row.format for row in CPU_INSTRUCTIONS} <= set(FORMATS)


def test_peaks_are_of_gpus_whose_tensor_cores_multiply_halves():
    with_peak = [gpu for gpu in GPUS.values() if gpu.peak is not None]
    assert len(with_peak) >= 10
    assert all("fp16" in gpu.tensor_core_formats for gpu in with_peak)
    assert GPUS["a100-80gb"].peak.ridge == pytest.approx(153, abs=0.1)  # 312e12 / 2039e9, as its data sheet has them
    assert GPUS["b200"].peak is None


def test_what_torchs_allocator_has_to_itself():
    assert GPUS["t4"].usable_bytes == 16 * 2**30 - 500 * 2**20
    assert GPUS["a100-80gb"].workspace_bytes == 8_519_680
    assert GPUS["h100-80gb"].workspace_bytes == GPUS["mi300x"].workspace_bytes == 32 * 2**20

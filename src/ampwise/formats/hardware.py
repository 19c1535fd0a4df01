"""Which hardware is fast in which format: GPUs, and CPU instructions, one row each.

"Fast" means tensor cores on a GPU and matrix or dot-product instructions on a CPU. A format can be computed in without
either; it is slow then.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

_VOLTA = ("fp16",)
_AMPERE = ("tf32", "bf16", "fp16")
_ADA = (*_AMPERE, "fp8_e4m3", "fp8_e5m2")
_CAPABILITIES = (((8, 9), _ADA), ((8, 0), _AMPERE), ((7, 0), _VOLTA))
_GTX_16_FAULT = "fp16 convolutions are known to give NaN on GTX 16xx, which has no tensor cores"

CONTEXT_BYTES: Final = 500 * 2**20
"""What a CUDA context with lazily loaded kernels takes outside of torch's allocator; 300 to 600 MiB by architecture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What a GPU can do at most, by its maker's data sheet: dense products, not sparse ones."""

    tflops_half: float
    """10^12 floating-point operations a second in fp16; bf16 has the same where there are tensor cores for it."""
    gb_per_s: float
    """10^9 bytes a second to and from its memory."""

    @property
    def ridge(self) -> float:
        """Operations a byte from which on products, not memory, bound the time in fp16 and bf16."""
        return self.tflops_half * 1e3 / self.gb_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A model of GPU as sold."""

    key: str
    """As in ``--device``: ``h100-80gb``."""
    name: str
    """As sold: ``NVIDIA H100 80GB``."""
    compute_capability: tuple[int, int] | None
    """None for a GPU that is not NVIDIA's."""
    memory_gib: int
    """Nominal; the driver keeps a few per cent of it."""
    tensor_core_formats: tuple[str, ...]
    """Formats its tensor (or matrix) cores multiply, fp64 left out."""
    faults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Formats known to give wrong numbers, each with the reason."""
    peak: "Peak | None" = None
    """What its maker says it can do at most; None where that was not looked up."""

    @property
    def memory_bytes(self) -> int:
        """Nominal memory in bytes."""
        return self.memory_gib * 2**30

    @property
    def usable_bytes(self) -> int:
        """What is left to torch's allocator beside the CUDA context."""
        return self.memory_bytes - CONTEXT_BYTES

    @property
    def workspace_bytes(self) -> int:
        """What each of cuBLAS's handles takes from torch's allocator."""
        return cublas_workspace_bytes(self.compute_capability)


_PEAKS: Mapping[str, Peak] = MappingProxyType(
    {
        # NVIDIA's data sheets of each; the SXM module where there are several. From Ampere on they print figures
        # with sparsity, which are twice these.
        "v100-16gb": Peak(tflops_half=125, gb_per_s=900),
        "v100-32gb": Peak(tflops_half=125, gb_per_s=900),
        "t4": Peak(tflops_half=65, gb_per_s=320),
        "a10": Peak(tflops_half=125, gb_per_s=600),
        "a100-40gb": Peak(tflops_half=312, gb_per_s=1555),
        "a100-80gb": Peak(tflops_half=312, gb_per_s=2039),
        "l4": Peak(tflops_half=121, gb_per_s=300),
        "l40s": Peak(tflops_half=362, gb_per_s=864),
        "h100-80gb": Peak(tflops_half=989, gb_per_s=3350),
        "h200": Peak(tflops_half=989, gb_per_s=4800),
    }
)


def _nvidia(key: str, name: str, capability: tuple[int, int], memory_gib: int) -> Gpu:
    return Gpu(
        key=key,
        name=name,
        compute_capability=capability,
        memory_gib=memory_gib,
        tensor_core_formats=natively_fast_formats(capability),
        peak=_PEAKS.get(key),
    )


def _gtx_16(key: str, name: str, memory_gib: int) -> Gpu:
    return Gpu(
        key=key,
        name=name,
        compute_capability=(7, 5),
        memory_gib=memory_gib,
        tensor_core_formats=(),
        faults=MappingProxyType({"fp16": _GTX_16_FAULT}),
    )


def natively_fast_formats(compute_capability: tuple[int, int], *, name: str = "") -> tuple[str, ...]:
    """Which formats an NVIDIA GPU's tensor cores multiply, fastest last.

    Args:
        compute_capability: as ``torch.cuda.get_device_capability`` gives it.
        name: as ``torch.cuda.get_device_name`` gives it. A GTX 16xx shares capability 7.5 with the T4 but has no
            tensor cores; only its name tells.
    """
    if is_gtx_16(name):
        return ()
    return next((formats for least, formats in _CAPABILITIES if compute_capability >= least), ())


def cublas_workspace_bytes(compute_capability: tuple[int, int] | None) -> int:
    """What each of cuBLAS's handles takes from the allocator: 4096 KiB twice and 16 KiB eight times, else 32 MiB.

    Source: ``aten/src/ATen/cuda/CublasHandlePool.cpp``: 32 MiB from compute capability 9.0 on and on ROCm. The forward
    pass and autograd's own thread have a handle each.

    Args:
        compute_capability: NVIDIA's; None for a GPU of another make.
    """
    if compute_capability is None or compute_capability >= (9, 0):
        return 32 * 2**20
    return (4096 * 2 + 16 * 8) * 1024


def least_compute_capability(format_name: str) -> tuple[int, int] | None:
    """From which compute capability on tensor cores multiply a format; None if none do."""
    return min((least for least, formats in _CAPABILITIES if format_name in formats), default=None)


def is_gtx_16(name: str) -> bool:
    """Whether a GPU's name says GTX 16xx (or its siblings of the same chip: MX450, T400 to T1200)."""
    return bool(re.search(r"\bGTX\s*16\d\d\b|\bMX[45]50\b|\bT(?:400|500|550|600|1000|1200)\b", name, re.IGNORECASE))


def find_gpu(name: str, *, total_bytes: int | None = None) -> Gpu | None:
    """The row of the GPU that a driver calls ``name`` (``NVIDIA A100-SXM4-40GB``) or users call by its key.

    Args:
        name: a key of ``GPUS`` or the driver's name.
        total_bytes: tells models apart that differ in memory alone; without it the smaller one is meant.
    """
    words = _words(name)
    found = [gpu for gpu in GPUS.values() if _words(gpu.key) == words]
    found = found or [gpu for gpu in GPUS.values() if _model_words(gpu) <= words]
    if not found:
        return None
    longest = max(len(_model_words(gpu)) for gpu in found)
    found = [gpu for gpu in found if len(_model_words(gpu)) == longest]
    with_size = [gpu for gpu in found if f"{gpu.memory_gib}gb" in words]
    if with_size or total_bytes is None:
        return min(with_size or found, key=lambda gpu: gpu.memory_gib)
    return min(found, key=lambda gpu: abs(gpu.memory_bytes - total_bytes))


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


def _model_words(gpu: Gpu) -> frozenset[str]:
    """The words of a key but for the memory: ``a100-40gb`` is an ``a100``."""
    return frozenset(word for word in _words(gpu.key) if not re.fullmatch(r"\d+gb", word))


_GPU_ROWS = (
    _nvidia("v100-16gb", "NVIDIA V100 16GB", (7, 0), 16),
    _nvidia("v100-32gb", "NVIDIA V100 32GB", (7, 0), 32),
    _nvidia("t4", "NVIDIA T4", (7, 5), 16),
    _gtx_16("gtx-1630", "NVIDIA GeForce GTX 1630", 4),
    _gtx_16("gtx-1650", "NVIDIA GeForce GTX 1650", 4),
    _gtx_16("gtx-1650-super", "NVIDIA GeForce GTX 1650 SUPER", 4),
    _gtx_16("gtx-1650-ti", "NVIDIA GeForce GTX 1650 Ti", 4),
    _gtx_16("gtx-1660", "NVIDIA GeForce GTX 1660", 6),
    _gtx_16("gtx-1660-super", "NVIDIA GeForce GTX 1660 SUPER", 6),
    _gtx_16("gtx-1660-ti", "NVIDIA GeForce GTX 1660 Ti", 6),
    _nvidia("rtx-2060", "NVIDIA GeForce RTX 2060", (7, 5), 6),
    _nvidia("rtx-2070", "NVIDIA GeForce RTX 2070", (7, 5), 8),
    _nvidia("rtx-2080", "NVIDIA GeForce RTX 2080", (7, 5), 8),
    _nvidia("rtx-2080-ti", "NVIDIA GeForce RTX 2080 Ti", (7, 5), 11),
    _nvidia("rtx-3060", "NVIDIA GeForce RTX 3060", (8, 6), 12),
    _nvidia("rtx-3070", "NVIDIA GeForce RTX 3070", (8, 6), 8),
    _nvidia("rtx-3080", "NVIDIA GeForce RTX 3080", (8, 6), 10),
    _nvidia("rtx-3090", "NVIDIA GeForce RTX 3090", (8, 6), 24),
    _nvidia("rtx-4060", "NVIDIA GeForce RTX 4060", (8, 9), 8),
    _nvidia("rtx-4070", "NVIDIA GeForce RTX 4070", (8, 9), 12),
    _nvidia("rtx-4080", "NVIDIA GeForce RTX 4080", (8, 9), 16),
    _nvidia("rtx-4090", "NVIDIA GeForce RTX 4090", (8, 9), 24),
    _nvidia("rtx-5070", "NVIDIA GeForce RTX 5070", (12, 0), 12),
    _nvidia("rtx-5080", "NVIDIA GeForce RTX 5080", (12, 0), 16),
    _nvidia("rtx-5090", "NVIDIA GeForce RTX 5090", (12, 0), 32),
    _nvidia("a10", "NVIDIA A10", (8, 6), 24),
    _nvidia("a10g", "NVIDIA A10G", (8, 6), 24),
    _nvidia("a100-40gb", "NVIDIA A100 40GB", (8, 0), 40),
    _nvidia("a100-80gb", "NVIDIA A100 80GB", (8, 0), 80),
    _nvidia("l4", "NVIDIA L4", (8, 9), 24),
    _nvidia("l40s", "NVIDIA L40S", (8, 9), 48),
    _nvidia("h100-80gb", "NVIDIA H100 80GB", (9, 0), 80),
    _nvidia("h200", "NVIDIA H200", (9, 0), 141),
    _nvidia("b200", "NVIDIA B200", (10, 0), 180),
    Gpu(
        key="mi300x",
        name="AMD Instinct MI300X",
        compute_capability=None,
        memory_gib=192,
        tensor_core_formats=_AMPERE,  # its fp8 is the "fnuz" kind, another format than OCP's
    ),
)

GPUS: Mapping[str, Gpu] = MappingProxyType({row.key: row for row in _GPU_ROWS})
"""Every GPU by its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuInstructions:
    """An instruction set that multiplies in a narrow format."""

    flag: str
    """As the kernel lists it in ``/proc/cpuinfo``."""
    architecture: str
    """As ``platform.machine()`` says it."""
    format: str


CPU_INSTRUCTIONS = (
    CpuInstructions(flag="avx512_bf16", architecture="x86_64", format="bf16"),
    CpuInstructions(flag="amx_bf16", architecture="x86_64", format="bf16"),
    CpuInstructions(flag="avx512_fp16", architecture="x86_64", format="fp16"),
    CpuInstructions(flag="amx_fp16", architecture="x86_64", format="fp16"),
    CpuInstructions(flag="bf16", architecture="aarch64", format="bf16"),
    CpuInstructions(flag="asimdhp", architecture="aarch64", format="fp16"),
)
"""Instruction sets and the format each is for.

That they exist does not make torch fast: one CPU with avx512_bf16 was measured a hundred times slower in fp16 than in
fp32. Measure before choosing.
"""

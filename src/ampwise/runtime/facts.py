"""What is known of a device: what it says of itself, and what was measured on it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never


class DeviceKind(StrEnum):
    """What decides on a device."""

    CPU = "cpu"
    CUDA = "cuda"
    """NVIDIA: the compute capability decides."""
    ROCM = "rocm"
    """AMD, which torch calls cuda too: the measurement decides."""
    OTHER = "other"
    """MPS, XPU and what else torch has an accelerator name for: the measurement decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One format's matrix product against fp32's."""

    ratio: float
    """fp32's time / the format's: above 1 is faster than fp32."""
    size: int
    """Rows and columns of the matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """All that the choice of a precision depends on, so that any GPU can be decided on without having it."""

    device: str
    """As torch writes it: ``cuda:1``."""
    kind: DeviceKind
    name: str
    capability: tuple[int, int] | None = None
    """CUDA's compute capability; None elsewhere, and where it could not be read."""
    instructions: frozenset[str] = frozenset()
    """A CPU's instruction sets (``avx512_bf16``), or an AMD GPU's architecture (``gfx942``)."""
    measured: Mapping[str, Measured] = field(default_factory=dict[str, Measured])
    """By format; a format that could not be measured is missing."""
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """By format, the error that kept it from being measured."""
    wrong_conv: str | None = None
    """What an fp16 convolution gave instead of fp32's result; None where it was right or not tried."""

    @property
    def has_tensor_cores(self) -> bool:
        """Whether an NVIDIA GPU has tensor cores: all from Volta on, but for Turing's small chips."""
        return self.capability is not None and self.capability >= (7, 0) and not self.is_turing_without_tensor_cores

    @property
    def is_turing_without_tensor_cores(self) -> bool:
        """Whether it is a TU116 or TU117 (GTX 16xx and kin): capability 7.5, no tensor cores, NaN in fp16."""
        return self.capability == (7, 5) and _SMALL_TURING.search(self.name) is not None

    @property
    def is_gtx_16(self) -> bool:
        """Whether it is one of the cards sold as GTX 16xx."""
        return self.is_turing_without_tensor_cores and "GTX" in self.name


# Every other device of capability 7.5 (T4, RTX 20xx, Quadro RTX, TITAN RTX) has tensor cores.
_SMALL_TURING = re.compile(r"GTX 16\d\d|MX[45]50|\bT(?:400|500|550|600|1000|1200|2000)\b")

_CPU_INSTRUCTIONS: Mapping[str, frozenset[str]] = {
    "bf16": frozenset({"avx512_bf16", "amx_bf16", "avx10_2", "bf16", "sve_bf16"}),
    "fp16": frozenset({"avx512_fp16", "amx_fp16", "avx10_2", "fp16_arith"}),
}
"""The instructions that multiply in a format; one is enough. ``bf16`` and ``fp16_arith`` are Arm's names."""

_FP16_BEFORE_VOLTA = frozenset({(5, 3), (6, 0), (6, 2)})
"""Chips with full-rate fp16 arithmetic and no tensor cores; on 6.1 it runs at 1/64 of fp32's rate."""


def native_instructions(format_name: str, facts: DeviceFacts) -> tuple[str, ...]:
    """Which of a CPU's instructions multiply in the format."""
    return tuple(sorted(facts.instructions & _CPU_INSTRUCTIONS.get(format_name, frozenset())))


def is_native(format_name: str, facts: DeviceFacts) -> bool:
    """Whether the hardware itself multiplies in the format.

    A device that does not say (MPS, XPU, AMD's formats but TF32) is judged by the measurement: native if it is
    no slower than fp32.
    """
    if format_name == "fp32":
        return True
    match facts.kind:
        case DeviceKind.CPU:
            return format_name == "fp64" or bool(native_instructions(format_name, facts))
        case DeviceKind.CUDA:
            return facts.capability is not None and _is_cuda_native(format_name, facts.capability)
        case DeviceKind.ROCM if format_name == "tf32":
            return any(arch.startswith(("gfx94", "gfx95")) for arch in facts.instructions)
        case DeviceKind.ROCM | DeviceKind.OTHER:
            measured = facts.measured.get(format_name)
            return measured is not None and measured.ratio >= 1
    assert_never(facts.kind)


def _is_cuda_native(format_name: str, capability: tuple[int, int]) -> bool:
    match format_name:
        case "fp64":
            return True
        case "tf32" | "bf16":
            return capability >= (8, 0)
        case "fp16":
            return capability >= (7, 0) or capability in _FP16_BEFORE_VOLTA
        case "fp8_e4m3" | "fp8_e5m2":
            return capability >= (8, 9)
        case _:
            return False

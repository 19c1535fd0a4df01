"""What is known of a device: what it says of itself, and what was measured on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import assert_never

from ampwise.formats.hardware import CPU_INSTRUCTIONS, is_gtx_16, natively_fast_formats


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
        """Whether it is an NVIDIA GPU with tensor cores."""
        return self.capability is not None and bool(natively_fast_formats(self.capability, name=self.name))

    @property
    def is_gtx_16(self) -> bool:
        """Whether it is a GTX 16xx or kin: capability 7.5, no tensor cores, NaN in fp16 convolutions."""
        return self.capability == (7, 5) and is_gtx_16(self.name)


def native_instructions(format_name: str, facts: DeviceFacts) -> tuple[str, ...]:
    """Which of a CPU's instructions multiply in the format."""
    return tuple(row.flag for row in CPU_INSTRUCTIONS if row.format == format_name and row.flag in facts.instructions)


def is_native(format_name: str, facts: DeviceFacts) -> bool:
    """Whether the hardware multiplies in the format at its full speed: tensor cores, or a CPU's own instructions.

    A device that does not say (MPS, XPU, AMD's formats but TF32) is judged by the measurement: native if it is
    no slower than fp32.
    """
    if format_name == "fp32":
        return True
    match facts.kind:
        case DeviceKind.CPU:
            return format_name == "fp64" or bool(native_instructions(format_name, facts))
        case DeviceKind.CUDA:
            capability = facts.capability or (0, 0)
            return format_name == "fp64" or format_name in natively_fast_formats(capability, name=facts.name)
        case DeviceKind.ROCM if format_name == "tf32":
            return any(arch.startswith(("gfx94", "gfx95")) for arch in facts.instructions)
        case DeviceKind.ROCM | DeviceKind.OTHER:
            measured = facts.measured.get(format_name)
            return measured is not None and measured.ratio >= 1
    assert_never(facts.kind)

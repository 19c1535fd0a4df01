"""What this machine can do: its devices, its formats, and the precision to use."""

from dataclasses import dataclass

import torch

from ampwise.compat.devices import cpu_memory_bytes, cpu_name, free_bytes, gpu_properties
from ampwise.formats import FORMATS
from ampwise.runtime.hardware.decide import decide
from ampwise.runtime.hardware.facts import DeviceFacts, is_native
from ampwise.runtime.hardware.gather import device_facts, measured_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """One device."""

    device: str
    """As torch writes it, and as ``--device`` takes it."""
    index: int | None
    """torch's number for it; None for the CPU."""
    name: str
    compute_capability: str | None
    total_bytes: int | None
    free_bytes: int | None
    tensor_cores: bool | None
    """None where the question does not arise."""
    uuid: str | None
    pci_bus: str | None
    """Where ``nvidia-smi`` shows it, whatever its number."""
    current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRow:
    """One format on the device looked at."""

    name: str
    native: bool
    """The hardware itself multiplies in it."""
    ratio_to_fp32: float | None
    """fp32's time / the format's, measured: above 1 is faster than fp32; None where it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do on one device."""

    device: str
    recommended: str
    reason: str
    formats: tuple[FormatRow, ...]


def advise(device: torch.device) -> Advice:
    """Which precision to use on ``device``, and how each format fares there; measures, once in a process."""
    facts = measured_facts(device)
    decision = decide(facts)
    return Advice(
        device=facts.device,
        recommended=decision.precision,
        reason=decision.reason,
        formats=tuple(_format_row(name, facts) for name in FORMATS),
    )


def list_devices(current: torch.device) -> tuple[DeviceRow, ...]:
    """Every device torch sees, the CPU last."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = None if accelerator is None else accelerator.type
    count = torch.accelerator.device_count() if kind else 0
    rows = [_row(torch.device(kind, index), current) for index in range(count) if kind]
    return (*rows, _cpu_row(current))


def _row(device: torch.device, current: torch.device) -> DeviceRow:
    facts = device_facts(device)
    is_cuda = device.type == "cuda" and "fp32" not in facts.failed
    properties = gpu_properties(device.index) if is_cuda else None
    return DeviceRow(
        device=facts.device,
        index=device.index,
        name=facts.name,
        compute_capability=".".join(map(str, facts.capability)) if facts.capability else None,
        total_bytes=properties.total_bytes if properties else None,
        free_bytes=free_bytes(device) if properties else None,
        tensor_cores=facts.has_tensor_cores if facts.capability else None,
        uuid=properties.uuid if properties else None,
        pci_bus=properties.pci_bus if properties else None,
        current=(device.type, device.index) == (current.type, current.index or 0),
    )


def _cpu_row(current: torch.device) -> DeviceRow:
    total, free = cpu_memory_bytes()
    return DeviceRow(
        device="cpu",
        index=None,
        name=cpu_name(),
        compute_capability=None,
        total_bytes=total,
        free_bytes=free,
        tensor_cores=None,
        uuid=None,
        pci_bus=None,
        current=current.type == "cpu",
    )


def _format_row(name: str, facts: DeviceFacts) -> FormatRow:
    measured = facts.measured.get(name)
    return FormatRow(name=name, native=is_native(name, facts), ratio_to_fp32=measured.ratio if measured else None)

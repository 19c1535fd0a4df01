"""Asks torch and the system what a device is; every private name and system file needed for it is here."""

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_NVIDIA_VERSION = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """What the driver says of one GPU."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    arch: str | None
    """AMD's name of the architecture (``gfx942``); None on NVIDIA."""
    uuid: str | None
    pci_bus: str | None
    """As ``nvidia-smi`` writes it: ``00000000:3B:00.0``."""


def gpu_properties(index: int) -> GpuProperties:
    """What the driver says of ``cuda:<index>``.

    Raises:
        RuntimeError: torch cannot reach the GPU.
    """
    properties: Any = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return GpuProperties(
        name=properties.name,
        capability=(properties.major, properties.minor),
        total_bytes=properties.total_memory,
        arch=properties.gcnArchName if torch.version.hip else None,
        uuid=None if uuid is None else f"GPU-{uuid}",
        pci_bus=_pci_bus(properties),
    )


def free_bytes(device: torch.device) -> int | None:
    """How much of a GPU's memory nobody uses; None where the driver does not say."""
    try:
        return torch.cuda.mem_get_info(device)[0]
    except (RuntimeError, AssertionError):
        return None


def cpu_name() -> str:
    """What the processor calls itself."""
    name = torch.cpu.get_capabilities().get("cpu_name")
    return str(name) if name else _cpuinfo_name() or platform.processor() or platform.machine()


def cpu_memory_bytes() -> tuple[int | None, int | None]:
    """How much memory the machine has, and how much of it a new program can get; None where it does not say."""
    try:
        fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE))
    except OSError:
        return None, None
    total, available = (int(fields[name]) * 1024 if name in fields else None for name in ("MemTotal", "MemAvailable"))
    return total, available


def cpu_instructions() -> frozenset[str]:
    """Which instruction sets the processor reports, as the Linux kernel names them: ``avx512_bf16``, ``asimdhp``."""
    present = (name for name, value in torch.cpu.get_capabilities().items() if value is True)
    return frozenset("asimdhp" if name == "fp16_arith" else name for name in present)


def driver_version() -> str | None:
    """The NVIDIA driver's version; None where the system shows none."""
    try:
        text = _NVIDIA_VERSION.read_text()
    except OSError:
        return None
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else None


def driver_cuda_version() -> str | None:
    """The newest CUDA the driver serves, as ``12.8``; None without a GPU."""
    read = getattr(torch._C, "_cuda_getDriverVersion", None)
    if read is None or not torch.cuda.is_available():
        return None
    version: int = read()
    return f"{version // 1000}.{version % 1000 // 10}"


def _pci_bus(properties: Any) -> str | None:
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return None
    return f"{properties.pci_domain_id:08X}:{bus:02X}:{properties.pci_device_id:02X}.0"


def _cpuinfo_name() -> str | None:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        return None
    return match[1].strip() if match else None

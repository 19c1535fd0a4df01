"""Machines with GPUs, made up: what torch and the driver would say, and what would be measured."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from ampwise.runtime.hardware.facts import Measured
from ampwise.runtime.hardware.race import Probe


@dataclass
class FakeGpu:
    name: str
    capability: tuple[int, int]
    total_bytes: int = 16 * 2**30
    free_bytes: int = 15 * 2**30
    ratios: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    wrong_conv: str | None = None
    arch: str = ""
    unreachable: str | None = None


@dataclass
class FakeMachine:
    gpus: list[FakeGpu]
    current: int = 0
    num_probes: int = 0


@pytest.fixture
def fake_gpus(monkeypatch):
    """Call it with GPUs: torch then sees these, whatever this machine has."""

    def install(*gpus, hip=None):
        machine = FakeMachine(list(gpus))
        _install(monkeypatch, machine, hip=hip)
        return machine

    return install


def _install(monkeypatch, machine, *, hip):
    import torch

    def properties(index):
        gpu = machine.gpus[index]
        if gpu.unreachable:
            raise RuntimeError(gpu.unreachable)
        return SimpleNamespace(
            name=gpu.name,
            major=gpu.capability[0],
            minor=gpu.capability[1],
            total_memory=gpu.total_bytes,
            uuid=f"0000000{index}-aaaa-bbbb-cccc-dddddddddddd",
            pci_bus_id=0x3B + index,
            pci_device_id=0,
            pci_domain_id=0,
            gcnArchName=gpu.arch,
        )

    def index_of(device):
        return machine.current if device.index is None else device.index

    def memory(device):
        gpu = machine.gpus[index_of(device)]
        return gpu.free_bytes, gpu.total_bytes

    def probe(device, **_):
        machine.num_probes += 1
        gpu = machine.gpus[index_of(torch.device(device))]
        measured = {name: Measured(ratio=ratio, size=1024) for name, ratio in {"fp32": 1.0, **gpu.ratios}.items()}
        return Probe(measured=measured, failed=gpu.failed)

    def set_index(index):
        machine.current = index

    monkeypatch.setattr(torch.version, "cuda", None if hip else "12.8")
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(machine.gpus))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: machine.current)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: len(machine.gpus))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: machine.current)
    monkeypatch.setattr(torch.accelerator, "set_device_index", set_index)
    monkeypatch.setattr("ampwise.runtime.hardware.gather.probe", probe)
    monkeypatch.setattr(
        "ampwise.runtime.hardware.gather.find_wrong_conv",
        lambda name: machine.gpus[index_of(torch.device(name))].wrong_conv,
    )


@pytest.fixture
def gpu():
    """Makes one GPU for ``fake_gpus``."""
    return FakeGpu

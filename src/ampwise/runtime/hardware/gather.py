"""Gathers what is known of the devices of this machine."""

from dataclasses import replace

import torch

from ampwise.compat.devices import cpu_instructions, cpu_name, gpu_properties
from ampwise.emulate.emulation import emulated_format
from ampwise.runtime.hardware.conv_check import find_wrong_conv
from ampwise.runtime.hardware.facts import DeviceFacts, DeviceKind
from ampwise.runtime.hardware.placement import index_of
from ampwise.runtime.hardware.probe import probe


def device_facts(device: torch.device) -> DeviceFacts:
    """What ``device`` says of itself; nothing is measured."""
    match device.type:
        case "cpu":
            return DeviceFacts(device="cpu", kind=DeviceKind.CPU, name=cpu_name(), instructions=cpu_instructions())
        case "cuda":
            return _gpu_facts(device)
        case _:
            return DeviceFacts(device=str(device), kind=DeviceKind.OTHER, name=device.type.upper())


def measured_facts(device: torch.device) -> DeviceFacts:
    """What ``device`` says of itself and what was measured on it, once in a process."""
    facts = device_facts(device)
    found = probe(facts.device, emulated=emulated_format())
    wrong_conv = find_wrong_conv(facts.device) if facts.capability == (7, 5) else None
    return replace(facts, measured=found.measured, failed=found.failed, wrong_conv=wrong_conv)


def _gpu_facts(device: torch.device) -> DeviceFacts:
    index = index_of(device)
    index = torch.cuda.current_device() if index is None else index
    name = f"cuda:{index}"
    kind = DeviceKind.ROCM if torch.version.hip else DeviceKind.CUDA
    try:
        properties = gpu_properties(index)
    except (RuntimeError, AssertionError) as error:  # what torch raises for a GPU it cannot reach
        return DeviceFacts(device=name, kind=kind, name=name, failed={"fp32": str(error)})
    return DeviceFacts(
        device=name,
        kind=kind,
        name=properties.name,
        capability=properties.capability if kind is DeviceKind.CUDA else None,
        instructions=frozenset({properties.arch} if properties.arch else ()),
    )

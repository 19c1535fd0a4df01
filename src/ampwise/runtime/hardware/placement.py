"""Which device is the current one, and how another becomes it for a while."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import torch

from ampwise._base.errors import CannotRunError, UsageError


def current_device() -> torch.device:
    """The device torch puts new work on: the accelerator's current one, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    if accelerator.type == "mps":
        return accelerator
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


@contextmanager
def use_device(name: str | None) -> Generator[torch.device]:
    """Within it, ``name`` (``cuda:1``) is the current device; afterwards the one before is again.

    Args:
        name: as torch writes it; None leaves the current device. ``cpu`` changes nothing but is what is yielded.

    Raises:
        UsageError: torch knows no such kind of device.
        CannotRunError: this machine has no such device.
    """
    if name is None:
        yield current_device()
        return
    device = parse_device(name)
    check_present(device)
    if device.type == "cpu":
        yield device
        return
    before = torch.accelerator.current_device_index()
    index = index_of(device)
    index = before if index is None else index
    torch.accelerator.set_device_index(index)
    try:
        yield torch.device(device.type, index)
    finally:
        torch.accelerator.set_device_index(before)


def index_of(device: torch.device) -> int | None:
    """The device's number; None where it means the current one of its kind, which torch's own type leaves out."""
    return cast("int | None", device.index)


def parse_device(name: str) -> torch.device:
    """The device a user means by ``name``.

    Raises:
        UsageError: torch knows no such kind of device.
    """
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise UsageError(f'"{name}" is not a device; write cpu, cuda, cuda:1, mps or xpu') from error


def check_present(device: torch.device) -> None:
    """Say that this machine has no such device, if it has not.

    Raises:
        CannotRunError: it has not; the text says what it has.
    """
    if device.type == "cpu":
        return
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != device.type:
        absent = _no_cuda() if device.type == "cuda" else f"torch sees no {device.type} device"
        have = "cpu" if accelerator is None else f"cpu and {accelerator.type}"
        raise CannotRunError(f"device {device}: {absent}; this machine has {have}. `ampwise info` shows what to check")
    count, index = torch.accelerator.device_count(), index_of(device)
    if index is not None and index >= count:
        last = f"{device.type}:{count - 1}"
        raise CannotRunError(f"device {device}: torch sees {count} of this kind; the last one is {last}")


def _no_cuda() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    return "torch sees no CUDA device"

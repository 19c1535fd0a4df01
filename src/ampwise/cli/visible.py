"""Why a process sees the GPUs it sees: how the environment renumbers them, and what to check where none is seen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwise.runtime.hardware.machine import DeviceRow

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def renumbering(environ: Mapping[str, str], *, num_visible: int) -> tuple[str, ...]:
    """How the environment numbers the GPUs anew, a sentence each.

    Args:
        environ: the process's environment.
        num_visible: how many GPUs torch sees.
    """
    name = next((name for name in _VARIABLES if name in environ), None)
    if name is None:
        return ()
    setting = environ[name]
    entries = [entry.strip() for entry in setting.split(",")]
    if not setting.strip() or entries[0] == "-1":
        return (f'{name}="{setting}" hides every GPU; unset it to see them',)
    if num_visible == 0:
        return (f"{name}={setting} is set, and torch sees none of these GPUs",)
    sentences = [f"{name}={setting}: " + ", ".join(_pairs(entries[:num_visible]))]
    if len(entries) > num_visible:
        sentences.append(
            f"{name} lists {len(entries)} GPUs and torch sees {num_visible}: "
            f'"{entries[num_visible]}" is not one it can use, and the list ends at the first such'
        )
    if not _is_pci_order(environ) and any(entry.isdecimal() for entry in entries):
        sentences.append(
            "these numbers count from the fastest GPU, while nvidia-smi counts by PCI bus; "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID makes them agree"
        )
    return tuple(sentences)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something to run, and what its answer tells."""

    command: str
    why: str


def checks(devices: "tuple[DeviceRow, ...]", *, cuda: str | None) -> tuple[Check, ...]:
    """What to run to find out why torch sees no GPU; nothing where it sees one.

    Args:
        devices: all that torch sees.
        cuda: the CUDA or ROCm version torch was built with, if any.
    """
    if any(row.device != "cpu" for row in devices):
        return ()
    build = f"was built for {cuda}" if cuda else "was built without CUDA; pytorch.org/get-started has the other builds"
    return (
        Check(
            command="nvidia-smi --query-gpu=name,compute_cap --format=csv",
            why="lists the GPUs the driver sees; if it fails, the driver is missing or not loaded",
        ),
        Check(
            command='python -c "import torch; print(torch.version.cuda)"',
            why=f"the torch in use {build}",
        ),
        Check(
            command="docker run --rm --gpus all ubuntu nvidia-smi",
            why="a container sees GPUs only with --gpus all, and its host needs nvidia-container-toolkit",
        ),
    )


def _pairs(entries: list[str]) -> list[str]:
    return [f"cuda:{index} is the machine's GPU {entry}" for index, entry in enumerate(entries)]


def _is_pci_order(environ: Mapping[str, str]) -> bool:
    return environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"

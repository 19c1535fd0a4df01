"""Says where looking at a number costs nothing, and waits where it does not."""

import torch
from torch import Tensor


def reads_freely(place: Tensor | torch.device) -> bool:
    """Whether the host can look at what lies there without waiting for a device."""
    device = place.device if isinstance(place, Tensor) else place
    return device.type == "cpu"


def wait_for(device: torch.device) -> None:
    """Wait until all that was asked of ``device``, which need not be the current one, is done."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)

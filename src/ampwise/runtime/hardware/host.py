"""Says where looking at a number costs nothing."""

import torch
from torch import Tensor


def reads_freely(place: Tensor | torch.device) -> bool:
    """Whether the host can look at what lies there without waiting for a device."""
    device = place.device if isinstance(place, Tensor) else place
    return device.type == "cpu"

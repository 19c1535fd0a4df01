"""What ampwise uses of autocast's private side."""

from typing import Any

import torch


def is_enabled(region: torch.autocast) -> bool:
    """Whether entering ``region`` switches autocast on: False too where its device is missing."""
    return bool(getattr(region, "_enabled", False))


def disable(maker: Any) -> None:
    """Let an autocast region, or a gradient scaler, do nothing from now on, as if made with ``enabled=False``."""
    maker._enabled = False


def function_entering(frame_locals: dict[str, Any]) -> Any:
    """The function that ``@autocast`` decorates, from the locals of its wrapper's frame."""
    return frame_locals.get("func")


DECORATOR_FRAME = "decorate_autocast"
"""Name of the function that ``@autocast`` makes."""

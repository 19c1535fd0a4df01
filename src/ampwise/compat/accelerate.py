"""What ampwise uses of Accelerate that its public interface lacks."""

from typing import Any


def has_prepared(accelerator: Any) -> bool:
    """Whether an ``Accelerator`` has taken an optimizer already."""
    return bool(accelerator._optimizers)

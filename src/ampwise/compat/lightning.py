"""What ampwise uses of Lightning that its public interface lacks."""

from typing import Any


def between_closure_and_step(plugin: Any, model: Any, optimizer: Any) -> None:
    """Call the Trainer's hooks before an optimizer's step, and clip as the Trainer was asked to.

    Lightning offers it to precision plugins as a method of their base class.
    """
    plugin._after_closure(model, optimizer)

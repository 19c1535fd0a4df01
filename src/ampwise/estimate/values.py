"""Numbers that are known although the GPU is imagined: small whole numbers and masks that came from the host.

They decide shapes (a mask's count, ``nonzero``) and branches (``mask.all()``), so they are carried along beside the
imaginary tensors as long as only whole numbers are computed from them.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.imaginary import Place, place_of
from ampwise.compat.tree import map_tensors

MAX_NUMEL: Final = 2**20
"""Larger tensors are not carried along: they would take the host's memory."""
_ATTRIBUTE: Final = "_ampwise_value"


def value_of(tensor: Tensor) -> Tensor | None:
    """What ``tensor`` holds, on the host; None where that is not known."""
    place = place_of(tensor)
    if place is Place.REAL:
        return tensor
    return getattr(tensor, _ATTRIBUTE, None) if place is Place.GPU else None


def set_value(tensor: Tensor, value: Tensor | None) -> None:
    """Say what ``tensor`` holds; None says that nobody knows."""
    is_small = value is not None and value.numel() <= MAX_NUMEL and not value.is_floating_point()
    if is_small and value is not None and value.shape == tensor.shape:
        setattr(tensor, _ATTRIBUTE, value)
    elif hasattr(tensor, _ATTRIBUTE):
        delattr(tensor, _ATTRIBUTE)


def computed(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Iterable[Tensor]
) -> None:
    """Carry the values along: compute on the host what ``func`` made of known whole numbers."""
    made = list(outputs)
    if not made or any(one.is_floating_point() or one.is_complex() for one in made):
        return
    known = _known((args, kwargs))
    if known is None:
        for one in made:
            set_value(one, None)
        return
    try:
        result = func(*known[0], **known[1])
    except (RuntimeError, TypeError, ValueError, IndexError):
        result = None
    values = [one for one in (result if isinstance(result, (list, tuple)) else [result]) if isinstance(one, Tensor)]
    for index, one in enumerate(made):
        set_value(one, values[index] if index < len(values) else None)


class _Unknown(Exception):  # noqa: N818 # no error: it ends a search
    """Some tensor's numbers are not known."""


def _known(arguments: Any) -> Any | None:
    """The arguments with known values in the tensors' places and on the host; None where one is not known."""

    def replace(tensor: Tensor) -> Tensor:
        value = value_of(tensor)
        if value is None or value.is_floating_point() or value.numel() > MAX_NUMEL:
            raise _Unknown
        return value.clone()

    try:
        args, kwargs = map_tensors(replace, arguments)
    except _Unknown:
        return None
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    return args, kwargs

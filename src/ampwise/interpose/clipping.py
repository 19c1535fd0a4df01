"""Rows for the functions that clip gradients, under the names that scripts import."""

from collections.abc import Callable
from typing import Any

import torch

from ampwise.interpose.row import Row
from ampwise.interpose.seam import Undo, intercept, undo_all


def _row(owner: str, attribute: str) -> Row:
    return Row(
        name=f"{owner}.{attribute}",
        owner=owner,
        attribute=attribute,
        why="says whether gradients are clipped while the loss scale is still in them",
        outermost=True,
    )


CLIPPING = tuple(
    _row(owner, attribute)
    for owner in ("torch.nn.utils", "torch.nn.utils.clip_grad")
    for attribute in ("clip_grad_norm_", "clip_grad_value_")
)


def on_clipping(callback: Callable[[str, list[torch.Tensor]], None]) -> Undo:
    """Call ``callback(function, parameters)`` before gradients are clipped, until the undo."""

    def around(name: str) -> Callable[..., Any]:
        def clipping(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get("parameters")
            parameters: list[torch.Tensor] = [given] if isinstance(given, torch.Tensor) else list(given or ())
            callback(name, parameters)
            if args:
                return proceed(parameters, *args[1:], **kwargs)  # an iterator can be read once
            return proceed(**{**kwargs, "parameters": parameters})

        return clipping

    undos = [intercept(row, around(row.attribute)) for row in CLIPPING]
    return lambda: undo_all(undos)

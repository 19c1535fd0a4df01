"""Rows for what a script's own gradient scaler is asked to do, whichever class defines it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ampwise.interpose.own_amp import SCALER
from ampwise.interpose.row import Row
from ampwise.interpose.seam import Interceptor, Undo, intercept, undo_all


def _row(attribute: str, why: str) -> Row:
    return Row(
        name=f"torch.amp.GradScaler.{attribute}",
        owner="torch.amp.grad_scaler:GradScaler",
        attribute=attribute,
        why=why,
        outermost=True,
        per_class=True,
    )


SCALE = _row("scale", "says which loss a scaled one was, so that records hold the loss that the script means")
UNSCALE = _row("unscale_", "says whether gradients are clipped or read while the loss scale is still in them")
SCALER_STEP = _row("step", "a step that the scaler skips calls no optimizer, so nothing else tells of it")
UPDATE = _row("update", "says when a scaler is done with a step")


def around_scalers(interceptors: Mapping[str, Interceptor]) -> Undo:
    """Let interceptors around the calls of every gradient scaler, of any class, those still to be defined included.

    Args:
        interceptors: Each by its row's attribute: ``scale``, ``unscale_``, ``step``, ``update``.
    """
    rows = [row for row in (SCALE, UNSCALE, SCALER_STEP, UPDATE) if row.attribute in interceptors]
    followed: dict[tuple[str, type[Any]], Undo] = {}

    def follow(cls: type[Any]) -> None:
        for row in rows:
            owner = next(one for one in cls.__mro__ if row.attribute in vars(one))
            if (row.attribute, owner) not in followed:
                undo = intercept(row, interceptors[row.attribute], owner=owner)
                followed[row.attribute, owner] = undo

    def made(proceed: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> None:
        follow(type(scaler))
        proceed(scaler, *args, **kwargs)

    for cls in _with_subclasses(torch.amp.GradScaler):
        follow(cls)
    construction = intercept(SCALER, made)

    def undo() -> None:
        construction()
        undo_all(followed.values())

    return undo


def _with_subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    for one in cls.__subclasses__():
        yield from _with_subclasses(one)

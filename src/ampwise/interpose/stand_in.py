"""Puts something else in the place of an attribute of torch, for a process in which a GPU is only imagined.

``seam`` lets interceptors around calls and serves the user's own process; a stand-in takes the place of anything, a
property or a class too, and nothing of the original is called unless it does so itself.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import getattr_static
from typing import Any, Final

from ampwise.interpose.seam import Undo, once, undo_all

_MISSING: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """What stands in for one attribute."""

    owner: str
    """Import path of the module, then the class if any, as in a ``Row``."""
    attribute: str
    make: Callable[[Any], Any]
    """Given the original, or None where the owner has no such attribute; what is to stand there."""


def put(stand_ins: Iterable[StandIn]) -> Undo:
    """Let each stand in for its attribute until the returned undo is called; all of them or none.

    The undo leaves alone what somebody else has replaced since.
    """
    undos: list[Undo] = []
    try:
        undos += [_put(one) for one in stand_ins]
    except BaseException:
        undo_all(undos)
        raise
    return once(partial(undo_all, undos))


def _put(one: StandIn) -> Undo:
    module_name, _, class_name = one.owner.partition(":")
    module = import_module(module_name)
    owner = getattr(module, class_name) if class_name else module
    own = vars(owner).get(one.attribute, _MISSING)
    made = one.make(getattr_static(owner, one.attribute, None))
    setattr(owner, one.attribute, made)
    return partial(_restore, owner, one.attribute, made, own)


def _restore(owner: Any, attribute: str, made: Any, own: Any) -> None:
    if vars(owner).get(attribute) is not made:
        return
    if own is _MISSING:
        delattr(owner, attribute)
    else:
        setattr(owner, attribute, own)

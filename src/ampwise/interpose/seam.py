"""Replaces an attribute once, lets any number of interceptors in, and puts the original back.

The table of what is replaced is the one piece of state ampwise keeps at module level: what it describes,
an attribute of a module or class of somebody else's, is itself global to the process.
"""

import functools
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from inspect import getattr_static
from typing import Any

from ampwise.interpose.internal import is_internal
from ampwise.interpose.row import Row

Undo = Callable[[], None]
Interceptor = Callable[..., Any]
"""Called as ``interceptor(proceed, *args, **kwargs)``; calls ``proceed`` for what lies under it, or does not."""


class _Seam:
    """One replaced attribute: the original, the replacement, and who listens."""

    def __init__(self, row: Row) -> None:
        module_name, _, class_name = row.owner.partition(":")
        owner: Any = import_module(module_name)
        self.owner = getattr(owner, class_name) if class_name else owner
        self.row = row
        self.original: Any = getattr_static(self.owner, row.attribute)
        self.inherited = row.attribute not in vars(self.owner)
        self.interceptors: tuple[Interceptor, ...] = ()
        self._call = self._bare()
        self._chain: Callable[..., Any] = self._call
        self.replacement = self._wrap()

    def _bare(self) -> Callable[..., Any]:
        """The function under a static or class method, or the original itself."""
        return self.original.__func__ if isinstance(self.original, (staticmethod, classmethod)) else self.original

    def _wrap(self) -> Any:
        seam = self

        @functools.wraps(self._call)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if is_internal():
                return seam._call(*args, **kwargs)
            return seam._chain(*args, **kwargs)

        kind = type(self.original)
        return kind(replacement) if kind in (staticmethod, classmethod) else replacement

    def set_interceptors(self, interceptors: tuple[Interceptor, ...]) -> None:
        """Earlier interceptors lie outside later ones."""
        chain = self._call
        for interceptor in reversed(interceptors):
            chain = functools.partial(interceptor, chain)
        self.interceptors, self._chain = interceptors, chain

    def install(self) -> None:
        setattr(self.owner, self.row.attribute, self.replacement)

    def is_on_top(self) -> bool:
        """Whether the attribute still is what ``install`` put there."""
        return vars(self.owner).get(self.row.attribute) is self.replacement

    def uninstall(self) -> bool:
        """Put the original back if ours is on top; else stay below somebody else's as a pass-through."""
        if not self.is_on_top():
            return False
        if self.inherited:
            delattr(self.owner, self.row.attribute)
        else:
            setattr(self.owner, self.row.attribute, self.original)
        return True


_SEAMS: dict[str, _Seam] = {}
_LOCK = threading.RLock()


def intercept(row: Row, interceptor: Interceptor) -> Undo:
    """Let ``interceptor`` around every call of the row's target until the returned undo is called.

    The undo may be called in any order with other rows' and interceptors' undos, and more than once.
    """
    with _LOCK:
        seam = _SEAMS.get(row.name)
        if seam is None:
            seam = _SEAMS[row.name] = _Seam(row)
            seam.install()
        seam.set_interceptors((*seam.interceptors, interceptor))

    def undo() -> None:
        with _LOCK:
            if interceptor in seam.interceptors:
                seam.set_interceptors(tuple(i for i in seam.interceptors if i is not interceptor))
            if not seam.interceptors and seam.uninstall() and _SEAMS.get(row.name) is seam:
                del _SEAMS[row.name]

    return undo


def intercepted() -> tuple[str, ...]:
    """The names of the rows whose target is replaced and has an interceptor."""
    return tuple(name for name, seam in _SEAMS.items() if seam.interceptors)


def switch_off_in_worker() -> None:
    """In a forked DataLoader worker: drop every interceptor whose row does not belong there."""
    with _LOCK:
        for name, seam in list(_SEAMS.items()):
            if not seam.row.in_workers:
                seam.set_interceptors(())
                if seam.uninstall():
                    del _SEAMS[name]


def is_loaded(module: str) -> bool:
    """Whether the script has imported ``module``: nothing is imported only to be replaced."""
    return module in sys.modules

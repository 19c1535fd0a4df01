"""Replaces an attribute once, lets any number of interceptors in, and puts the original back.

The table of what is replaced is the one piece of state ampwise keeps at module level: what it describes,
an attribute of a module or class of somebody else's, is itself global to the process.
"""

import functools
import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from inspect import getattr_static
from typing import Any

from ampwise.compat.dynamo import Tracer, get_tracer, is_dynamo_compiling, never_compile_alone, set_tracer
from ampwise.interpose.internal import is_hidden
from ampwise.interpose.row import Row

Undo = Callable[[], None]
Interceptor = Callable[..., Any]
"""Called as ``interceptor(proceed, *args, **kwargs)``; calls ``proceed`` for what lies under it, or does not."""


class _Thread(threading.local):
    """What this thread is in the middle of."""

    is_inside = False
    tracer: Tracer = None
    """What Dynamo was about to do when an interceptor was called."""


_THREAD = _Thread()


class _Seam:
    """One replaced attribute: the original, the replacement, and who listens."""

    def __init__(self, row: Row, owner: Any, inside: _Thread) -> None:
        self.owner = owner
        self.row = row
        self.original: Any = getattr_static(owner, row.attribute)
        self.inherited = row.attribute not in vars(owner)
        self.interceptors: tuple[Interceptor, ...] = ()
        self.call = self._bare()
        self.chain: Callable[..., Any] = self.call
        bare = _outermost(self, inside) if row.outermost else _every(self)
        never_compile_alone(bare, _Seam.run, is_hidden)
        # pickle looks a function up by its home, which re-exported ones (torch.save) have elsewhere
        bare.__module__, bare.__qualname__ = _home(owner, row.attribute)
        kind = type(self.original)
        self.replacement: Any = kind(bare) if kind in (staticmethod, classmethod) else bare

    def _bare(self) -> Callable[..., Any]:
        """The function under a static or class method, or the original itself."""
        return self.original.__func__ if isinstance(self.original, (staticmethod, classmethod)) else self.original

    def set_interceptors(self, interceptors: tuple[Interceptor, ...]) -> None:
        """Earlier interceptors lie outside later ones."""
        chain = _traced_again(self.call) if interceptors else self.call
        for interceptor in reversed(interceptors):
            chain = functools.partial(interceptor, chain)
        self.interceptors, self.chain = interceptors, chain

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the interceptors untraced: Dynamo, met at a graph break, would compile and so bypass them."""
        tracer = get_tracer()
        if tracer is None:
            return self.chain(*args, **kwargs)
        outer, _THREAD.tracer = _THREAD.tracer, tracer
        set_tracer(None)
        try:
            return self.chain(*args, **kwargs)
        finally:
            set_tracer(tracer)
            _THREAD.tracer = outer

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


def _home(owner: Any, attribute: str) -> tuple[str, str]:
    if isinstance(owner, type):
        return owner.__module__, f"{owner.__qualname__}.{attribute}"
    return owner.__name__, attribute


def _every(seam: _Seam) -> Callable[..., Any]:
    call, when_hidden = seam.call, seam.row.when_hidden

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or (is_hidden() and not when_hidden):
            return call(*args, **kwargs)
        return seam.run(args, kwargs)

    return replacement


def _outermost(seam: _Seam, inside: _Thread) -> Callable[..., Any]:
    # Module.__call__ goes through here once a layer, so what a nested call costs is what fp32 costs.
    call = seam.call

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or inside.is_inside or is_hidden():
            return call(*args, **kwargs)
        inside.is_inside = True
        try:
            return seam.run(args, kwargs)
        finally:
            inside.is_inside = False

    return replacement


def _traced_again(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` under what Dynamo was about to do when the interceptors were called."""

    def proceed(*args: Any, **kwargs: Any) -> Any:
        tracer = _THREAD.tracer
        if tracer is None:
            return call(*args, **kwargs)
        set_tracer(tracer)
        try:
            return call(*args, **kwargs)
        finally:
            set_tracer(None)

    return proceed


_SEAMS: dict[tuple[int, str], _Seam] = {}
_INSIDE: dict[str, _Thread] = {}
_LOCK = threading.RLock()


def intercept(row: Row, interceptor: Interceptor, *, owner: Any = None) -> Undo:
    """Let ``interceptor`` around every call of the row's target until the returned undo is called.

    The undo may be called in any order with other rows' and interceptors' undos, and more than once. Two rows of one
    target share it.

    Args:
        row: What to intercept.
        interceptor: Called as ``interceptor(proceed, *args, **kwargs)``.
        owner: For a ``per_class`` row: the class whose attribute is meant.
    """
    target = owner_of(row) if owner is None else owner
    key = (id(target), row.attribute)
    with _LOCK:
        seam = _SEAMS.get(key)
        if seam is None:
            seam = _SEAMS[key] = _Seam(row, target, _INSIDE.setdefault(row.name, _Thread()))
            seam.install()
        elif getattr_static(target, row.attribute) is seam.original:
            seam.install()  # whoever lay on top has put back what was there before us
        seam.set_interceptors((*seam.interceptors, interceptor))
    return once(functools.partial(_leave, key, seam, interceptor))


def _leave(key: tuple[int, str], seam: _Seam, interceptor: Interceptor) -> None:
    with _LOCK:
        remaining = list(seam.interceptors)
        if interceptor in remaining:
            remaining.remove(interceptor)
            seam.set_interceptors(tuple(remaining))
        if not seam.interceptors and seam.uninstall() and _SEAMS.get(key) is seam:
            del _SEAMS[key]


def once(action: Undo) -> Undo:
    """An undo that may be called more than once, from any thread."""
    pending = [action]

    def undo() -> None:
        try:
            first = pending.pop()  # atomic: of two threads one finds the list empty
        except IndexError:
            return
        first()

    return undo


def owner_of(row: Row) -> Any:
    """The module or class whose attribute the row means."""
    module_name, _, class_name = row.owner.partition(":")
    module = import_module(module_name)
    return getattr(module, class_name) if class_name else module


def undo_all(undos: Iterable[Undo]) -> None:
    """Call every undo, the last first."""
    for undo in reversed(list(undos)):
        undo()


def intercepted() -> tuple[str, ...]:
    """The names of the rows whose target is replaced and has an interceptor."""
    return tuple(seam.row.name for seam in _SEAMS.values() if seam.interceptors)


def switch_off_in_worker() -> None:
    """In a forked DataLoader worker: drop every interceptor whose row does not belong there."""
    with _LOCK:
        for key, seam in list(_SEAMS.items()):
            if not seam.row.in_workers:
                seam.set_interceptors(())
                if seam.uninstall():
                    del _SEAMS[key]

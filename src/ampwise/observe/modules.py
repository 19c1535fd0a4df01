"""Names the modules of somebody's models, and knows at any moment which of them is being called."""

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeGuard

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ampwise.compat.autograd import is_inside_backward
from ampwise.compat.modules import accept_global_hooks, identity_of, is_replica
from ampwise.observe.frames import user_frames, variables_of

_WRAPPED = frozenset({"module", "_orig_mod"})
"""What DataParallel, DDP and torch.compile call the model within: plans name the model, not its wrapper."""


@dataclass(slots=True, kw_only=True, eq=False)
class Root:
    """A model: what its script calls it, and whether it holds parameters."""

    name: str
    has_parameters: bool


@dataclass(slots=True, kw_only=True, eq=False)
class ModuleName:
    """What one module is called; one object a module, however long it lives.

    Ask for ``path`` late: it depends on what other models the script turns out to have.
    """

    root: Root
    inner: str
    """The path from its root, ``""`` for the root itself."""
    kind: str
    """The module's class."""
    _is_only_model: Callable[[Root], bool] = field(repr=False)

    @property
    def path(self) -> str:
        """As plans and reports write it: from the root, which is named only where there are several models."""
        if self._is_only_model(self.root):
            return self.inner
        return f"{self.root.name}.{self.inner}" if self.inner else self.root.name


class ModuleNames:
    """Knows the name of every module it has met.

    A module called while no other is becomes a root unless it lies in one, or in a module that a variable of the
    calling code holds. A root bears the name of the variable that holds it in the outermost frame of the user's that
    has one, else of an attribute of such a variable, else its class and its number. Nothing is kept alive.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Module], ModuleName]] = {}
        self._roots: list[Root] = []
        self._unnamed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def name_of(self, module: nn.Module, *, parent: nn.Module | None = None) -> ModuleName | None:
        """What ``module`` is called; None for one that hangs in no tree, such as ``nn.ReLU()`` made during a call.

        Args:
            module: The module, or a replica that DataParallel made of it.
            parent: Who is calling it; without one it may be a root.
        """
        found = self._find(module)
        if found is not None:
            return found
        with self._lock:
            if parent is None:
                self._add_root(module)
            else:
                self._add_child(module, parent)
        return self._find(module)

    def add_root(self, module: nn.Module, *, name: str | None = None) -> None:
        """Name a model before it is called, by its variable or by ``name``."""
        with self._lock:
            self._add_tree(unwrapped(module), name or _owner_of(module)[1])

    def _is_only_model(self, root: Root) -> bool:
        """Whether ``root`` needs no name of its own in a path: a loss function beside it is no model."""
        return [one for one in self._roots if one.has_parameters] in ([root], []) and root in self._roots

    def _find(self, module: nn.Module) -> ModuleName | None:
        reference, name = self._known.get(identity_of(module), (None, None))
        known = reference() if reference is not None else None
        if known is module or (known is not None and is_replica(module)):
            return name
        return None

    def _add_root(self, module: nn.Module) -> None:
        owner, name = _owner_of(module)
        self._add_tree(owner, name)
        if self._find(module) is None:  # a wrapper bears its model's name
            name_within = self._find(unwrapped(module))
            if name_within is not None:
                self._known[identity_of(module)] = (weakref.ref(module), name_within)

    def _add_tree(self, module: nn.Module, variable: str | None) -> None:
        kind = type(module).__name__
        name = variable or f"{kind}{self._unnamed[kind]}"
        self._unnamed[kind] += variable is None
        root = Root(name=name, has_parameters=next(module.parameters(), None) is not None)
        swallowed = [entry.root for one in module.modules() if (entry := self._find(one)) is not None]
        self._roots = [*(one for one in self._roots if one not in swallowed), root]
        for path, one in module.named_modules():
            self._add(one, root, path)

    def _add_child(self, module: nn.Module, parent: nn.Module) -> None:
        """Name a module that came into its parent after the tree was walked."""
        above = self._find(parent)
        key = next((key for key, child in parent.named_children() if child is module), None)
        if above is None or key is None:
            return
        prefix = f"{above.inner}.{key}" if above.inner else key
        for path, one in module.named_modules(prefix=prefix):
            if self._find(one) is None:
                self._add(one, above.root, path)

    def _add(self, module: nn.Module, root: Root, path: str) -> None:
        known = self._find(module)
        if known is None:
            kind = type(module).__name__
            known = ModuleName(root=root, inner=path, kind=kind, _is_only_model=self._is_only_model)
            self._known[identity_of(module)] = (weakref.ref(module), known)
        known.root, known.inner = root, path


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a module that is going on."""

    module: nn.Module
    name: ModuleName | None
    """Of the module, or where it has none, of the nearest caller that has one."""
    is_recompute: bool
    """Activation checkpointing calls it again during backward: its forward was seen before."""


class CallListener(Protocol):
    """Told of every module's call."""

    def entered(self, call: Call, args: tuple[Any, ...]) -> None:
        """The call is about to begin."""
        ...

    def left(self, call: Call, args: tuple[Any, ...], output: Any) -> None:
        """The call has returned ``output``; not told where it raised."""
        ...


class _Thread(threading.local):
    """The calls this thread is within, the outermost first."""

    def __init__(self) -> None:
        self.calls: list[Call] = []


class ModuleStack:
    """Knows which modules each thread is calling, while entered; may be entered several times over and shared.

    It attaches torch's hooks for all modules and leaves none behind. Calls within compiled or scripted code are not
    seen: the module whose call was compiled stands for all in it. Law: after a call that raised, the stack is as it
    was before the call.
    """

    def __init__(self, names: ModuleNames | None = None, *, listeners: tuple[CallListener, ...] = ()) -> None:
        self.names = names or ModuleNames()
        self._listeners = listeners
        self._thread = _Thread()
        self._undo = ExitStack()
        self._num_entered = 0

    def __enter__(self) -> Self:
        self._num_entered += 1
        if self._num_entered == 1:
            self._thread = _Thread()
            self._undo.callback(accept_global_hooks())
            self._undo.callback(register_module_forward_pre_hook(self._before).remove)
            self._undo.callback(register_module_forward_hook(self._after, always_call=True).remove)
        return self

    def __exit__(self, *exc: object) -> None:
        self._num_entered -= 1
        if not self._num_entered:
            self._undo.close()

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls this thread is within, the outermost first."""
        return tuple(self._thread.calls)

    @property
    def call(self) -> Call | None:
        """The innermost call this thread is within."""
        calls = self._thread.calls
        return calls[-1] if calls else None

    @property
    def name(self) -> ModuleName | None:
        """The innermost module with a name that this thread is calling."""
        calls = self._thread.calls
        return calls[-1].name if calls else None

    def clear(self) -> None:
        """Forget this thread's calls: at a step's end, where an exception that torch's hooks do not see ended them."""
        self._thread.calls.clear()

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        calls = self._thread.calls
        above = calls[-1] if calls else None
        name = self.names.name_of(module, parent=above.module if above else None)
        call = Call(module, name or (above.name if above else None), is_inside_backward())
        calls.append(call)
        for listener in self._listeners:
            listener.entered(call, args)

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        calls = self._thread.calls
        for index in range(len(calls) - 1, -1, -1):
            if calls[index].module is module:
                call = calls[index]
                del calls[index:]
                if output is not None or not _is_raising():
                    for listener in self._listeners:
                        listener.left(call, args, output)
                return


def _is_raising() -> bool:
    """Whether torch runs the hook because the call raised: it then hands over None in the output's place."""
    return sys.exc_info()[0] is not None


def unwrapped(module: nn.Module) -> nn.Module:
    """The model within DataParallel, DDP or torch.compile: what plans and reports name."""
    children = dict(module.named_children())
    if (
        len(children) == 1
        and next(iter(children)) in _WRAPPED
        and not any(True for _ in module.parameters(recurse=False))
    ):
        return unwrapped(next(iter(children.values())))
    return module


def _owner_of(module: nn.Module) -> tuple[nn.Module, str | None]:
    """The largest model in the calling code's variables that holds ``module``, and the outermost variable's name."""
    inner = unwrapped(module)
    best, best_size, best_name = inner, sum(1 for _ in inner.modules()), ""
    for name, value in _candidates():
        model = unwrapped(value)
        members = {id(one) for one in model.modules()}
        is_worse = len(members) < best_size or (model is best and best_name and (not name or value is not model))
        if id(inner) in members and not is_worse:
            best, best_size, best_name = model, len(members), name
    return best, best_name or None


def _candidates() -> Iterator[tuple[str, nn.Module]]:
    """The modules that variables hold, and attributes of ``self``, from the innermost of the user's frames outward."""
    for frame in user_frames():
        variables = variables_of(frame)
        owner = variables.get("self")
        attributes = [] if is_module(owner) else list(getattr(owner, "__dict__", {}).items())
        for name, value in (*attributes, *variables.items()):
            if is_module(value) and name != "self":
                yield name, value
        if is_module(owner):
            yield "", owner


def is_module(value: object) -> TypeGuard[nn.Module]:
    """Whether ``value`` is a module; a lazy object of the script's is not woken."""
    return issubclass(type(value), nn.Module)

"""The events of a training step, read off the calls in the source: backward, unscale, clip, step, update ..."""

import ast
import re
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from ampwise.lint.kinds import Kind, Kinds
from ampwise.lint.names import Names
from ampwise.lint.tree import FUNCTIONS, Function, Scope, Tree, dotted


class Act(StrEnum):
    """What happens at an event."""

    FORWARD = "forward"
    """A module is called."""
    BACKWARD = "backward"
    UNSCALE = "unscale"
    CLIP = "clip"
    """Gradients are clipped, or their norm is taken, by a function."""
    GRAD_USE = "grad use"
    """``.grad`` is read or written in a way that a common factor changes."""
    STEP = "step"
    """An optimizer steps, by itself or through a scaler."""
    UPDATE = "update"
    ZERO_GRAD = "zero_grad"
    SCHEDULER_STEP = "scheduler step"
    SYNC = "sync"
    """``torch.cuda.synchronize`` and the like."""
    SAVE = "save"
    """``torch.save``."""
    CALL = "call"
    """A function of this file is called; a walk goes into it, one level deep."""
    OPAQUE = "opaque"
    """A scaler, optimizer or module is handed to a function that is not in this file: anything may happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event; the places are dotted texts (``self.opt``) as the function that is walked names them."""

    act: Act
    node: ast.expr
    scaler: str | None = None
    """Of unscale, update, a scaled backward, a step through a scaler."""
    optimizer: str | None = None
    """Of unscale, step; of zero_grad whatever it is called on."""
    loss: str | None = None
    """Of backward: the place of what is differentiated."""
    is_scaled: bool = False
    """Of backward: the loss was multiplied by a scaler."""
    handed: frozenset[Kind] = frozenset()
    """Of opaque: what kinds of things the unknown function was given."""
    callee: Function | None = None
    via: ast.Call | None = None
    """The call in the walked function through which a callee's event happens."""


_CLIP: Final = re.compile(
    r"clip_grad(_norm|_value|s|ients)?_?(_with_norm_?)?|\w*grad_norm_?|\w*gradient_norm|clip_gradients?"
)
_ASKS: Final = re.compile(r"(log|print|plot|record|write|register|set|check|use|should|is|has|max)_\w*")
_SYNCS: Final = re.compile(r"torch\.(cuda|xpu|mps|npu|accelerator)(\.current_stream)?\.synchronize")
_NONLINEAR: Final = frozenset(
    "norm clamp clamp_ clamp_min_ clamp_max_ clip clip_ abs abs_ pow pow_ square sqrt max min amax amin sign sign_ std "
    "var".split()
)


class Events:
    """The events of a file, in the order in which a statement brings them about."""

    def __init__(self, tree: Tree, names: Names, kinds: Kinds) -> None:
        self._tree = tree
        self._names = names
        self._kinds = kinds
        self._known: dict[ast.AST, tuple[Event, ...]] = {}

    @cached_property
    def all(self) -> tuple[Event, ...]:
        """Every event of the file, in the order of their ends: inner calls come before the outer, left before right."""
        calls = (self._call(call) for call in self._tree.nodes(ast.Call))
        found = [event for event in calls if event is not None]
        grads = [node for node in self._tree.nodes(ast.Attribute) if node.attr == "grad"]
        found += [Event(act=Act.GRAD_USE, node=node) for node in grads if self._is_nonlinear(node)]
        return tuple(sorted(found, key=_end))

    @cached_property
    def _ends(self) -> list[tuple[int, int]]:
        return [_end(event) for event in self.all]

    @cached_property
    def _by_scope(self) -> dict[Scope, list[Event]]:
        found: dict[Scope, list[Event]] = {}
        for event in self.all:
            found.setdefault(self._tree.scope(event.node), []).append(event)
        return found

    def within(self, scope: Scope) -> list[Event]:
        """The events of a module's or function's own body; nested defs, classes and lambdas are left out."""
        return self._by_scope.get(scope, [])

    def of(self, node: ast.AST | None) -> tuple[Event, ...]:
        """The events of a statement's or expression's own expressions; nested defs and lambdas are left out."""
        if node is None or isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return ()
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._read(node.context_expr if isinstance(node, ast.withitem) else node)
        return known

    def _read(self, node: ast.AST) -> tuple[Event, ...]:
        if not isinstance(node, ast.stmt | ast.expr):
            return ()
        first = bisect_right(self._ends, (node.lineno, node.col_offset))
        last = bisect_right(self._ends, (node.end_lineno or node.lineno, node.end_col_offset or 0))
        if first == last:
            return ()
        scope = self._tree.scope(node)
        return tuple(event for event in self.all[first:last] if self._tree.scope(event.node) is scope)

    def _call(self, call: ast.Call) -> Event | None:
        if isinstance(call.func, ast.Attribute):
            event = self._method(call, call.func)
            if event is not None:
                return event
        callee = self._names.function(call)
        if callee is not None:
            return Event(act=Act.CALL, node=call, callee=callee)
        return self._library(call) or self._forward(call) or self._opaque(call)

    def _method(self, call: ast.Call, function: ast.Attribute) -> Event | None:
        owner, place = function.value, dotted(function.value)
        match function.attr:
            case "backward":
                return self._backward(call, owner)
            case "unscale_" if call.args:
                return Event(act=Act.UNSCALE, node=call, scaler=place, optimizer=_argument(call, 0, "optimizer"))
            case "step":
                return self._step(call, owner, place)
            case "update" if self._kinds.is_a(owner, Kind.SCALER):
                return Event(act=Act.UPDATE, node=call, scaler=place)
            case "zero_grad":
                return Event(act=Act.ZERO_GRAD, node=call, optimizer=place)
            case _:
                return None

    def _backward(self, call: ast.Call, owner: ast.expr) -> Event | None:
        if self._names.resolve(owner) in {"torch.autograd", "torch"}:
            if not call.args:
                return None
            owner = call.args[0]
        elif call.args and self._kinds.is_a(owner, Kind.MODULE):
            return None  # engine.backward(loss) of a framework
        scaler = self.scaled_by(owner)
        return Event(act=Act.BACKWARD, node=call, scaler=scaler, loss=dotted(owner), is_scaled=scaler is not None)

    def scaled_by(self, loss: ast.expr, depth: int = 0) -> str | None:
        """The place of the scaler that ``loss`` was multiplied by, through names, sums and quotients; else None."""
        if depth > 8:
            return None
        match loss:
            case ast.Call(func=ast.Attribute(attr="scale", value=scaler)):
                return dotted(scaler) if self._kinds.is_a(scaler, Kind.SCALER) else None
            case ast.Call(func=ast.Attribute(attr="mean" | "sum", value=inner)):
                return self.scaled_by(inner, depth + 1)
            case ast.BinOp(left=left, right=right):
                return self.scaled_by(left, depth + 1) or self.scaled_by(right, depth + 1)
            case ast.Name() | ast.Attribute():
                bound = self._names.latest(loss)
                is_whole = bound is not None and bound.value is not None and bound.index is None
                return self.scaled_by(bound.value, depth + 1) if bound and bound.value and is_whole else None
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return next((found for one in elements if (found := self.scaled_by(one, depth + 1))), None)
            case _:
                return None

    def _step(self, call: ast.Call, owner: ast.expr, place: str | None) -> Event | None:
        kind = self._kinds.of(owner)
        optimizer = _argument(call, 0, "optimizer")
        if kind.kind is Kind.SCALER and optimizer is not None:
            return Event(act=Act.STEP, node=call, scaler=place, optimizer=optimizer)
        if kind.kind is Kind.SCHEDULER:
            return Event(act=Act.SCHEDULER_STEP, node=call, optimizer=place)
        if kind.kind is Kind.OPTIMIZER:
            return Event(act=Act.STEP, node=call, optimizer=place)
        return None

    def _library(self, call: ast.Call) -> Event | None:
        name = self._names.resolve(call.func) or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
        last = name.rpartition(".")[2]
        if "grad" in last and _CLIP.fullmatch(last) and not _ASKS.fullmatch(last) and call.args:
            return Event(act=Act.CLIP, node=call)
        if last == "synchronize" and _SYNCS.fullmatch(name):
            return Event(act=Act.SYNC, node=call)
        if name == "torch.save":
            return Event(act=Act.SAVE, node=call)
        return None

    def _forward(self, call: ast.Call) -> Event | None:
        if not self._kinds.is_a(call.func, Kind.MODULE):
            return None
        return Event(act=Act.FORWARD, node=call)

    def _opaque(self, call: ast.Call) -> Event | None:
        if isinstance(call.func, ast.Attribute) and self._kinds.of(call.func.value).kind is not Kind.UNKNOWN:
            return None
        name = self._names.resolve(call.func)
        if name and name.startswith(("torch.", "copy.", "print", "len", "isinstance", "type", "str", "id", "hasattr")):
            return None
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        handed = [self._kinds.of(argument) for argument in arguments if isinstance(argument, ast.Name | ast.Attribute)]
        kinds = frozenset(value.kind for value in handed) & {Kind.SCALER, Kind.OPTIMIZER, Kind.MODULE}
        return Event(act=Act.OPAQUE, node=call, handed=kinds) if kinds else None

    def _is_nonlinear(self, grad: ast.Attribute) -> bool:
        """Whether a common factor of the gradient would change what is made of it."""
        node: ast.AST = grad
        for outer in self._tree.ancestors(grad):
            match outer:
                case ast.Attribute(attr="data" | "detach" | "float" | "view" | "flatten" | "_values"):
                    pass
                case ast.Attribute(attr=attr) if attr in _NONLINEAR:
                    return True
                case ast.Call(func=func) if node is func:
                    pass
                case ast.Call(func=func):
                    last = (self._names.resolve(func) or "").rpartition(".")[2]
                    return last in _NONLINEAR
                case ast.BinOp(op=ast.Pow(), left=left) if node is left:
                    return True
                case ast.GeneratorExp() | ast.ListComp() | ast.List():
                    pass
                case _:
                    return False
            node = outer
        return False


def _end(event: Event) -> tuple[int, int]:
    return event.node.end_lineno or event.node.lineno, event.node.end_col_offset or 0


def _argument(call: ast.Call, index: int, name: str) -> str | None:
    """The place of a positional or keyword argument."""
    if len(call.args) > index:
        return dotted(call.args[index])
    return next((dotted(keyword.value) for keyword in call.keywords if keyword.arg == name), None)

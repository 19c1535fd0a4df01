"""Finds a script's training step: where it goes backward, clips, and steps."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from ampwise.runner.placement.names import Names, calls_in_all
from ampwise.runner.placement.source import Function, Source, calls_in, dotted, last_part, walk_here

N = TypeVar("N", bound=ast.AST)

_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_"})
_NO_OPTIMIZER = ("sched", "prof", "ema", "env", "warmup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """One backward pass."""

    call: ast.Call
    losses: tuple[ast.expr, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of an optimizer's step."""

    call: ast.Call
    optimizer: ast.expr
    closure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """All places of a script where it goes backward, steps, or touches gradients between the two."""

    backwards: tuple[Backward, ...]
    steps: tuple[Step, ...]
    gradient_uses: tuple[ast.stmt, ...]
    """Innermost statements that clip or read gradients."""
    acting: frozenset[Function]
    """Functions that go backward or step, themselves or through others."""
    forwarding: frozenset[Function]
    """Functions that compute and do not act."""
    names: Names

    def is_barrier(self, statement: ast.stmt) -> bool:
        """Whether running ``statement`` goes backward or steps, so that it must not run under autocast."""
        own = {id(one.call) for one in (*self.backwards, *self.steps)}
        return any(id(call) in own or self._acts(call) for call in calls_in(statement))

    def computes(self, statement: ast.AST) -> bool:
        """Whether ``statement`` runs a model, a loss or a matrix product."""
        return any(is_product(node) or self._runs_model(node) for node in walk_here(statement))

    def _runs_model(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        return self.names.computes(node) or any(one in self.forwarding for one in self.names.called(node))

    def _acts(self, call: ast.Call) -> bool:
        return any(one in self.acting for one in self.names.called(call))


def find_training_step(source: Source, names: Names) -> TrainingStep:
    """Where ``source`` goes backward, clips and steps."""
    backwards = tuple(_backwards(source, names))
    steps = tuple(_steps(source, names))
    acting = _spread({_function_of(source, one.call) for one in (*backwards, *steps)} - {None}, names)
    forwarding = frozenset(_forwarding(names, acting))
    uses = tuple(_gradient_uses(source, names))
    return TrainingStep(
        backwards=backwards, steps=steps, gradient_uses=uses, acting=acting, forwarding=forwarding, names=names
    )


def _backwards(source: Source, names: Names) -> Iterator[Backward]:
    for call in _in_order(calls_in_all(source.tree)):
        if names.full(call.func) == "torch.autograd.backward":
            losses = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "tensors")]
            yield Backward(call=call, losses=tuple(losses))
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and not _is_custom_backward(call):
            yield Backward(call=call, losses=(call.func.value,))


def _is_custom_backward(call: ast.Call) -> bool:
    """Whether a ``backward`` is a method of the script itself, or of ``super()``: no loss's."""
    name = dotted(call.func) or ""
    if name == "self.backward":
        return True
    return (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Call)
        and dotted(call.func.value.func) == "super"
    )


def _steps(source: Source, names: Names) -> Iterator[Step]:
    for call in _in_order(calls_in_all(source.tree)):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "step"):
            continue
        optimizer = call.func.value
        last = last_part(dotted(optimizer) or "").lower()
        if names.is_optimizer(optimizer) and not any(word in last for word in _NO_OPTIMIZER):
            yield Step(call=call, optimizer=optimizer, closure=bool(call.args or call.keywords))


def _gradient_uses(source: Source, names: Names) -> Iterator[ast.stmt]:
    seen: set[ast.stmt] = set()
    for node in _in_order(ast.walk(source.tree)):
        clips = isinstance(node, ast.Call) and last_part(names.full(node.func)) in _CLIPS
        reads = isinstance(node, ast.Attribute) and node.attr == "grad" and names.full(node) != "torch.autograd.grad"
        if clips or (reads and not _empties_gradient(source, node)):
            statement = source.statement(node)
            if statement not in seen:
                seen.add(statement)
                yield statement


def _empties_gradient(source: Source, node: ast.AST) -> bool:
    """``p.grad = None``, ``p.grad.zero_()`` and ``if p.grad is None``: right whatever the scale."""
    above = source.parent(node)
    match above:
        case ast.Assign(value=ast.Constant(value=None)):
            return True
        case ast.Attribute(attr="zero_" | "detach_" | "requires_grad_"):
            return True
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return True
        case _:
            return False


def _in_order(nodes: Iterable[N]) -> list[N]:
    """Nodes that have a place in the text, in the order of the text."""
    return sorted((node for node in nodes if hasattr(node, "lineno")), key=_place)


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _function_of(source: Source, node: ast.AST) -> Function | None:
    scope = source.scope(node)
    return None if isinstance(scope, ast.Module) else scope


def _spread(seed: Iterable[Function | None], names: Names) -> frozenset[Function]:
    """``seed`` and the functions that call one of them, directly or through others."""
    found = {one for one in seed if one is not None}
    every = [function for functions in names.functions.values() for function in functions]
    while True:
        more = {one for one in every if any(set(names.called(call)) & found for call in _own_calls(one))}
        if more <= found:
            return frozenset(found)
        found |= more


def _forwarding(names: Names, acting: frozenset[Function]) -> frozenset[Function]:
    every = [function for functions in names.functions.values() for function in functions if function not in acting]
    seed = [
        one
        for one in every
        if any(map(is_product, ast.walk(one))) or any(names.computes(call) for call in _own_calls(one))
    ]
    return _spread(seed, names) - acting


def is_product(node: ast.AST) -> bool:
    """Whether ``node`` is ``a @ b``."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


def _own_calls(function: Function) -> Iterator[ast.Call]:
    return (call for statement in function.body for call in calls_in(statement))

"""What several rules of the scaler's protocol ask of a file."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ampwise.lint.conditions import atom
from ampwise.lint.events import Act, Event
from ampwise.lint.kinds import Kind
from ampwise.lint.names import Bound, position
from ampwise.lint.regions import argument
from ampwise.lint.source import SourceFile
from ampwise.lint.torch_names import MODULE_WORD, SCALERS
from ampwise.lint.tree import FUNCTIONS, LOOPS, Loop, dotted

PRECISION_WORD: Final = re.compile(r"amp|scaler|fp16|half|mixed|precision|bf16|float16|autocast|cuda", re.IGNORECASE)
"""A condition with one of these words decides which precision an arm is for."""
_JUMPS: Final = (ast.Continue, ast.Break, ast.Return, ast.Raise)


@dataclass(frozen=True, slots=True)
class SkippedUpdate:
    """A ``continue`` or ``return`` that leaves an iteration between a scaler's unscale_ or step and its update."""

    jump: ast.Continue | ast.Return
    last: Event
    """The unscale_ or step before it."""
    update: Event


def at(event: Event) -> ast.expr:
    """Where the walked function makes the event happen: the event itself, or the call it happens in."""
    return event.via or event.node


def constructions(file: SourceFile) -> Iterator[ast.Call]:
    """The GradScalers that the file makes, but for those switched off for good."""
    for call in file.tree.nodes(ast.Call):
        if file.names.resolve(call.func) not in SCALERS:
            continue
        enabled = argument(call, "enabled", 99)
        if not (isinstance(enabled, ast.Constant) and not enabled.value):
            yield call


def is_scaler_handed_away(file: SourceFile) -> bool:
    """Whether a function that is not in the file is given a scaler, and may do anything with it."""
    return any(event.act is Act.OPAQUE and Kind.SCALER in event.handed for event in file.flow.events)


def is_loop_variable(file: SourceFile, place: str | None, node: ast.expr) -> bool:
    """Whether ``place`` means another thing in each round of a loop: ``opt`` of ``for opt in opts``, ``opts[i]``."""
    if place is None:
        return True
    roots = set(re.findall(r"(?<![.\w'\"])[A-Za-z_]\w*", place))
    loops = file.tree.loops(node)
    for root in roots - {"self"}:
        for binding in file.names.visible(root, node):
            if binding.how is Bound.LOOP or any(loop in loops for loop in file.tree.loops(binding.node)):
                return True
    return False


def are_exclusive(file: SourceFile, first: ast.AST, second: ast.AST) -> bool:
    """Whether one round of a loop, or one call of a function, never runs both; ``first`` stands first."""
    around, chain = dict(_arms(file, second)), {second, *file.tree.ancestors(second)}
    for outer, child in _arms(file, first):
        if outer in around:
            if _in_other_arm(outer, child, around[outer]):
                return True
            break
        block = file.tree.block(outer) if isinstance(outer, ast.stmt) else []
        if block and isinstance(block[-1], _JUMPS) and not chain & set(block):
            return True
    holds = dict(_conditions(file, second))
    return any(holds.get(text, value) != value for text, value in _conditions(file, first))


def _arms(file: SourceFile, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The blocks around ``node`` in its function, from the inside out, each with the child that holds it."""
    child = node
    for outer in file.tree.ancestors(node):
        if isinstance(outer, (ast.stmt, ast.ExceptHandler, ast.Module, ast.match_case)):
            yield outer, child
        if isinstance(outer, FUNCTIONS):
            return
        child = outer


def _in_other_arm(outer: ast.AST, one: ast.AST, other: ast.AST) -> bool:
    match outer:
        case ast.If():
            return (one in outer.body) is not (other in outer.body) and outer.test not in {one, other}
        case ast.Try():
            return isinstance(one, ast.ExceptHandler) and isinstance(other, ast.ExceptHandler) and one is not other
        case ast.Match():
            return one is not other
        case _:
            return False


def _conditions(file: SourceFile, node: ast.AST) -> Iterator[tuple[str, object]]:
    """What must hold for ``node`` to run, by text: ``use_amp`` is True, ``optimizer_index`` is 0."""
    for outer, child in _arms(file, node):
        if not isinstance(outer, ast.If) or child is outer.test:
            continue
        match outer.test:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=value)]) if child in outer.body:
                yield ast.unparse(left), value
            case ast.UnaryOp(op=ast.Not(), operand=inner) if not isinstance(inner, ast.BoolOp):
                one = atom(inner)
                yield one.text, one.answer is not (child in outer.body)
            case ast.BoolOp():
                continue
            case test:
                one = atom(test)
                yield one.text, one.answer is (child in outer.body)


def skipped_updates(file: SourceFile) -> Iterator[SkippedUpdate]:
    """Every jump out of an iteration that passes over update() after an unscale_ or a step."""
    for root in file.flow.roots:
        events = file.flow.events_in(root)
        updates = [event for event in events if event.act is Act.UPDATE]
        if not updates:
            continue
        begun = [event for event in events if event.act is Act.UNSCALE or (event.act is Act.STEP and event.scaler)]
        for jump in file.tree.inside(root, ast.Continue, ast.Return):
            if file.tree.function(jump) is (root if isinstance(root, FUNCTIONS) else None):
                yield from _skipped(file, jump, begun, updates)


def _skipped(
    file: SourceFile, jump: ast.Continue | ast.Return, begun: list[Event], updates: list[Event]
) -> Iterator[SkippedUpdate]:
    loop = next(iter(file.tree.loops(jump)), None)
    if isinstance(jump, ast.Return) and loop is not None:
        return
    for event in reversed(begun):
        if not _precedes(file, event.node, jump, loop):
            continue
        mine = [update for update in updates if update.scaler == event.scaler]
        done = any(_precedes(file, update.node, jump, loop) for update in mine if _after(update.node, event.node))
        later = [update for update in mine if _after(update.node, jump) and _loop(file, update.node) is loop]
        if later and not done:
            yield SkippedUpdate(jump, event, later[-1])
            return


def _after(node: ast.AST, earlier: ast.AST) -> bool:
    return position(node) > position(earlier)


def _loop(file: SourceFile, node: ast.AST) -> Loop | None:
    return next(iter(file.tree.loops(node)), None)


def _precedes(file: SourceFile, node: ast.AST, jump: ast.AST, loop: Loop | None) -> bool:
    """Whether ``node`` may run before ``jump`` in one round of ``loop``."""
    return _after(jump, node) and _loop(file, node) is loop and not are_exclusive(file, node, jump)


def builds_training(file: SourceFile, body: ast.AST) -> bool:
    """Whether an optimizer is made in ``body`` itself, unconditionally: each round is a training of its own."""
    for statement in file.tree.inside(body, ast.Assign):
        made = [dotted(target) for target in statement.targets if isinstance(statement.value, ast.Call)]
        if not any(made) or _is_conditional(file, statement, body):
            continue
        if any(file.kinds.is_a(target, Kind.OPTIMIZER) for target in _elements(statement)):
            return True
    return False


def builds_model(file: SourceFile, body: ast.AST) -> bool:
    """Whether a model is made in ``body``."""
    for statement in file.tree.inside(body, ast.Assign):
        if isinstance(statement.value, ast.Call) and not isinstance(statement.value.func, ast.Attribute):
            name = dotted(statement.targets[0])
            if name is not None and MODULE_WORD.fullmatch(name.rpartition(".")[2]):
                return True
    return False


def _elements(statement: ast.Assign) -> list[ast.expr]:
    target = statement.targets[0]
    return target.elts if isinstance(target, ast.Tuple) else [target]


def _is_conditional(file: SourceFile, statement: ast.stmt, body: ast.AST) -> bool:
    for outer in file.tree.ancestors(statement):
        if outer is body:
            return False
        if isinstance(outer, (ast.If, *LOOPS, *FUNCTIONS)):
            return True
    return True

"""Which loops train, and which code runs in every iteration of one."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ampwise.lint.events import Act, Event
from ampwise.lint.flow import Flow
from ampwise.lint.names import Names
from ampwise.lint.torch_names import SCALER_WORD
from ampwise.lint.tree import LOOPS, Function, Loop, Tree, dotted
from ampwise.lint.values import Kind

_THROTTLE: Final = re.compile(
    r"(log|print|verbose|debug|freq|interval|every|period|report|profil|plot|vis|sync|save|eval|valid|display|summary"
    r"|is_last|last_|_last|time)", re.IGNORECASE,
)  # fmt: skip

_COUNTER: Final = re.compile(
    r"i|it|idx|index|n_iter|batch_(idx|id|index|num|i)|([a-z]+_)?(steps?|epoch|iter|iters|iteration|iterations)"
)
"""What people call the number of an iteration or epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hot:
    """The training loop in whose every iteration something runs."""

    loop: Loop | None
    """None where the iteration is a function that a loop calls."""
    function: Function | None
    """The function that holds the code; None at module level."""
    via: ast.Call | None = None
    """The call in the loop, where the code is in a function called from it."""

    @property
    def label(self) -> str:
        """How a person would name the place: ``train()``."""
        return f"{self.function.name}()" if self.function is not None else "the training loop"


class Loops:
    """The training loops of one file."""

    def __init__(self, tree: Tree, names: Names, flow: Flow) -> None:
        self._tree = tree
        self._names = names
        self._flow = flow
        self._epochs: dict[Function, bool] = {}

    @cached_property
    def training(self) -> tuple[Loop, ...]:
        """The innermost loops that hold both a backward and an optimizer step, themselves or through calls."""
        loops = self._tree.nodes(ast.For, ast.AsyncFor, ast.While)
        trains = [loop for loop in loops if self._trains(loop)]
        outer = {around for loop in trains for around in self._tree.loops(loop)}
        return tuple(loop for loop in trains if loop not in outer)

    @cached_property
    def iterations(self) -> tuple[Function, ...]:
        """Functions that are one iteration: they hold backward and step in no loop of their own."""
        roots = [root for root in self._flow.roots if not isinstance(root, ast.Module)]
        return tuple(root for root in roots if not self._holds_training(root) and self._trains(root))

    def _trains(self, node: ast.AST) -> bool:
        """Whether one pass through ``node`` trains."""
        return {Act.BACKWARD, Act.STEP} <= self._acts(node, depth=2)

    def _acts(self, node: ast.AST, *, depth: int) -> set[Act]:
        """What one pass through ``node`` does, in calls too: a callee that has the training loop itself is no part."""
        found: set[Act] = set()
        for event in self._flow.events_in(node):
            found.add(event.act)
            if _is_wrapped_step(event):
                found |= {Act.BACKWARD, Act.STEP}
            if event.callee is not None and depth > 0 and not self._holds_training(event.callee):
                found |= self._acts(event.callee, depth=depth - 1)
        return found

    def _holds_training(self, function: Function) -> bool:
        """Whether ``function`` has a loop that trains."""
        known = self._epochs.get(function)
        if known is None:
            self._epochs[function] = False  # a function that calls itself is asked again
            loops = [loop for loop in self._loops_of.get(function, []) if self._trains(loop)]
            known = self._epochs[function] = bool(loops)
        return known

    @cached_property
    def _loops_of(self) -> dict[Function, list[Loop]]:
        found: dict[Function, list[Loop]] = {}
        for loop in self._tree.nodes(ast.For, ast.AsyncFor, ast.While):
            function = self._tree.function(loop)
            if function is not None:
                found.setdefault(function, []).append(loop)
        return found

    def hot(self, node: ast.expr | ast.stmt) -> Hot | None:
        """The training loop that runs ``node`` in every iteration; None where none does, or an `if` makes it rare."""
        inner = self._hot_here(node)
        if inner is not None:
            return inner
        function = self._tree.function(node)
        if function is None or (self._tree.loops(node) and function not in self.iterations):
            return None
        if self.throttle(node, function) is not None:
            return None
        if function in self.iterations and not self._is_recursive(function):
            return Hot(loop=None, function=function)
        return self._hot_through_call(function)

    def _hot_here(self, node: ast.expr | ast.stmt) -> Hot | None:
        for loop in self._tree.loops(node):
            if loop in self.training:
                if self.throttle(node, loop) is not None:
                    return None
                return Hot(loop=loop, function=self._tree.function(node))
        return None

    def _hot_through_call(self, function: Function) -> Hot | None:
        for call in self._flow.callers(function):
            for loop in self._tree.loops(call):
                if loop in self.training and self.throttle(call, loop) is None:
                    return Hot(loop=loop, function=function, via=call)
            caller = self._tree.function(call)
            if caller in self.iterations and not self._tree.loops(call) and self.throttle(call, caller) is None:
                return Hot(loop=None, function=function, via=call)
        return None

    def _is_recursive(self, function: Function) -> bool:
        return any(self._tree.function(call) is function for call in self._flow.callers(function))

    def throttle(self, node: ast.AST, within: ast.AST | None) -> ast.If | None:
        """The `if` between ``node`` and ``within`` that makes it run seldom: by ``%``, last step, time or a log flag.

        So does one for what should not happen: a loss that is no number, an arm that ends the loop or the process.

        An `if` whose body steps the optimizer is no throttle: it is the accumulation's.
        """
        child = node
        for outer in self._tree.ancestors(node):
            if outer is within:
                return None
            is_arm = isinstance(outer, ast.If) and child is not outer.test
            if is_arm and isinstance(outer, ast.If) and (self._is_throttle(outer) or _ends_it(outer, child, within)):
                return outer
            child = outer
        return None

    def _is_throttle(self, branch: ast.If) -> bool:
        if Act.STEP in {event.act for statement in branch.body for event in self._flow.events_in(statement)}:
            return False
        return is_rare(branch.test) or bool(_THROTTLE.search(ast.unparse(branch.test)))

    def micro(self, loop: Loop) -> ast.If | None:
        """The `if` under which a gradient accumulation loop steps: ``(i + 1) % accum == 0``; None where it has none."""
        for event in self._flow.events_in(loop):
            if event.act is not Act.STEP:
                continue
            for outer in self._tree.ancestors(event.node):
                if outer is loop:
                    break
                if isinstance(outer, ast.If) and is_rare(outer.test) and self._backward_outside(loop, outer):
                    return outer
        return None

    def _backward_outside(self, loop: Loop, branch: ast.If) -> bool:
        inside = {event.node for event in self._flow.events_in(branch)}
        return any(e.act is Act.BACKWARD and e.node not in inside for e in self._flow.events_in(loop))


def _is_wrapped_step(event: Event) -> bool:
    """Whether a call is of a wrapper that does both at once: ``loss_scaler(loss, optimizer, ...)``."""
    call = event.node
    if event.act is not Act.OPAQUE or Kind.OPTIMIZER not in event.handed or not isinstance(call, ast.Call):
        return False
    name = (dotted(call.func) or "").rpartition(".")[2]
    return SCALER_WORD.fullmatch(name) is not None and len(call.args) > 1


def is_rare(test: ast.expr) -> bool:
    """Whether a condition holds in few iterations: it has a remainder, or compares with a length less one."""
    for node in ast.walk(test):
        match node:
            case ast.BinOp(op=ast.Mod()):
                return True
            case ast.Compare(ops=[ast.Eq()], comparators=[right]) if "len(" in ast.unparse(right):
                return True
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]) if _counts(left):
                return True
            case _:
                continue
    return False


def _counts(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return _COUNTER.fullmatch(name.lstrip("_")) is not None


def _ends_it(branch: ast.If, child: ast.AST, within: ast.AST | None) -> bool:
    """Whether the arm of ``branch`` that holds ``child`` is for a loss that is no number, or is the last to run."""
    arm = branch.body if child in branch.body else branch.orelse
    if _is_about_nan(branch.test) is (arm is branch.body):
        return True
    match arm[-1]:
        case ast.Raise() | ast.Break():
            return True
        case ast.Return():
            return isinstance(within, LOOPS)
        case ast.Expr(value=ast.Call(func=function)):
            return ast.unparse(function) in {"sys.exit", "exit", "quit", "os._exit"}
        case _:
            return False


def _is_about_nan(test: ast.expr) -> bool | None:
    """Whether a condition holds for what is no number, or for numbers alone; None where it asks something else."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            inverse = _is_about_nan(inner)
            return None if inverse is None else not inverse
        case ast.BoolOp(values=[first, *_]):
            return _is_about_nan(first)
        case ast.Call(func=ast.Attribute(value=ast.Call() as inner, attr="any" | "all" | "item")):
            return _is_about_nan(inner)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return {"isnan": True, "isinf": True, "isfinite": False}.get(name)
        case _:
            return None

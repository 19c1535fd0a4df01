"""Which statements must run under autocast: those that compute a loss, and nothing that acts on its gradients."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ampwise.runner.placement.loop import Backward, TrainingStep
from ampwise.runner.placement.source import Function, Source, arguments, dotted, inner_blocks, plain_targets, walk_here

_MAX_CALLS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Hoist:
    """A loss that is computed within the statement that goes backward: it needs a statement of its own."""

    statement: ast.stmt
    expression: ast.expr


@dataclass(slots=True, kw_only=True)
class Regions:
    """Finds the statements to put under autocast, going up from each backward pass."""

    source: Source
    step: TrainingStep
    _marked: dict[ast.stmt, None] = field(default_factory=dict)
    _far: dict[ast.stmt, None] = field(default_factory=dict)
    """What feeds the loss from outside its own iteration: of it, only what computes goes under autocast."""
    _ends: set[ast.stmt] = field(default_factory=set)
    """Statements that lead up to a backward pass from their own block."""
    _hoists: dict[ast.expr, Hoist] = field(default_factory=dict)
    _seen: set[tuple[ast.AST, str]] = field(default_factory=set)
    _num_computing: int = 0

    def add(self, backward: Backward) -> bool:
        """Mark what computes the losses of ``backward``; whether anything that computes was found."""
        before = self._num_computing
        self._seen.clear()
        statement = self.source.statement(backward.call)
        needed = {name for loss in backward.losses for name in self._need(loss, statement)}
        self._climb(statement, needed, _MAX_CALLS)
        return self._num_computing > before

    @property
    def hoists(self) -> tuple[Hoist, ...]:
        """Losses to compute in a statement of their own."""
        return tuple(self._hoists.values())

    def runs(self) -> list[list[ast.stmt]]:
        """Consecutive statements to put under one ``with``, each run beginning with one that computes."""
        blocks = {id(block): block for block in map(self.source.block, self._marked)}
        runs = [run for block in blocks.values() for run in self._runs_in(block)]
        near = {one for run in runs for one in run}
        far = [one for one in self._far if one not in near and not near.intersection(self.source.ancestors(one))]
        runs += [run for one in far for run in self._computing_parts([one])]
        return sorted(runs, key=lambda run: run[0].lineno)

    def leads_to(self, run: list[ast.stmt], hoist: Hoist) -> bool:
        """Whether ``run`` stands in the same block as ``hoist``, and nothing between them acts."""
        block = self.source.block(hoist.statement)
        if not any(one is run[0] for one in block) or block.index(run[-1]) > block.index(hoist.statement):
            return False
        return not any(map(self.step.is_barrier, block[block.index(run[0]) : block.index(hoist.statement)]))

    def _runs_in(self, block: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
        run: list[ast.stmt] = []
        for statement in [*block, None]:
            if statement is None or self.step.is_barrier(statement):
                yield from self._trimmed(run, own=statement in self._ends)
                run = []
            else:
                run.append(statement)

    def _trimmed(self, run: list[ast.stmt], *, own: bool) -> Iterator[list[ast.stmt]]:
        """From the first marked statement that computes to the last marked one.

        Where the run does not lead up to a backward pass in its ``own`` block, it ends before what is unmarked.
        """
        marked = [index for index, one in enumerate(run) if one in self._marked]
        computing = [index for index in marked if self.step.computes(run[index])]
        if computing:
            last = marked[-1] if own else computing[-1]
            while last + 1 in marked:
                last += 1
            yield run[computing[0] : last + 1]

    def _computing_parts(self, block: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
        """The simple statements in ``block``, and in the blocks in it, that compute; neighbours together."""
        run: list[ast.stmt] = []
        for statement in block:
            inner = list(inner_blocks(statement))
            if not inner and self.step.computes(statement) and not self.step.is_barrier(statement):
                run.append(statement)
                continue
            if run:
                yield run
                run = []
            for one in inner:
                yield from self._computing_parts(one)
        if run:
            yield run

    def _climb(self, statement: ast.stmt, needed: set[str], calls_left: int) -> None:
        """Mark what writes ``needed`` before ``statement``, in its block and those around it, then at the callers."""
        current, far = statement, False
        self._ends.add(statement)
        while True:
            block = self.source.block(current)
            self._slice(block[: block.index(current)], needed, far=far)
            outer = self.source.outer_statement(current)
            if outer is None or isinstance(outer, ast.ClassDef):
                return
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                self._climb_to_callers(outer, needed, calls_left)
                return
            if outer is self.source.loop(current) and self.source.loop(outer) is None:
                # What stands before the outermost loop is preparation, unless its function is called in a loop.
                function = self.source.scope(outer)
                if not isinstance(function, ast.Module):
                    self._climb_to_callers(function, needed, calls_left)
                return
            far = far or outer is self.source.loop(current)
            current = outer

    def _climb_to_callers(self, function: Function, needed: set[str], calls_left: int) -> None:
        if not calls_left or not needed:
            return
        for call in self.step.names.callers(function):
            key = (call, " ".join(sorted(needed)))
            if key in self._seen:
                continue
            self._seen.add(key)
            statement = self.source.statement(call)
            theirs = {name for name in needed if "." in name and name.partition(".")[0] not in _bound(function)}
            roots = {name.partition(".")[0] for name in needed}
            for argument in (given for parameter, given in arguments(function, call) if parameter in roots):
                theirs |= self._need(argument, statement)
            self._climb(statement, theirs, calls_left - 1)

    def _need(self, loss: ast.expr, statement: ast.stmt) -> set[str]:
        """Names of the data that ``loss`` reads; if it computes by itself, ``statement`` must not hold it."""
        if self.step.computes(loss):
            self._hoists[loss] = Hoist(statement=statement, expression=loss)
            self._num_computing += 1
        return self._read(loss)

    def _slice(self, statements: Sequence[ast.stmt], needed: set[str], *, far: bool) -> None:
        """Mark, from the last to the first, the statements that write what is needed; ``needed`` follows."""
        for statement in reversed(statements):
            if self.step.is_barrier(statement):
                for block in inner_blocks(statement):
                    self._slice(block, needed, far=far)
                continue
            direct, through_calls = self._written(statement)
            if not _touches(direct | through_calls, needed):
                continue
            aside = isinstance(statement, ast.For | ast.While) and not _touches(direct, needed)
            (self._far if far or aside else self._marked)[statement] = None
            self._num_computing += self.step.computes(statement)
            if isinstance(statement, ast.Assign):
                needed -= {name for target in statement.targets for name in plain_targets(target)}
            needed |= self._read(statement)

    def _read(self, node: ast.AST) -> set[str]:
        """Names of the data that ``node`` reads; models and functions are no data."""
        names = self.step.names
        callees = {id(one.func) for one in walk_here(node) if isinstance(one, ast.Call)}
        found: set[str] = set()
        for one in _chains(node):
            chain = one.value if id(one) in callees and isinstance(one, ast.Attribute) else one
            name = dotted(chain)
            if name is None or (id(one) in callees and isinstance(one, ast.Name)):
                continue
            if name != "self" and name.partition(".")[0] not in names.imports and not names.is_model(chain):
                found.add(name)
        for call in (one for one in walk_here(node) if isinstance(one, ast.Call)):
            found |= {name for function in names.called(call) for name in _outer_chains(function, ast.Load)}
        return {name for name in found if name not in names.functions and name not in names.models}

    def _written(self, statement: ast.stmt) -> tuple[set[str], set[str]]:
        """Names that ``statement`` assigns or changes in place, and those that functions it calls do."""
        direct = {_changed(node) or "" for node in walk_here(statement)}
        calls = [node for node in walk_here(statement) if isinstance(node, ast.Call)]
        called = [function for call in calls for function in self.step.names.called(call)]
        through_calls = {name for function in called for name in _outer_chains(function, ast.Store)}
        return direct - {"", "self"}, through_calls


def _chains(node: ast.AST) -> Iterator[ast.expr]:
    """The longest chains of names that ``node`` reads."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    if isinstance(node, ast.Name | ast.Attribute) and dotted(node) and isinstance(node.ctx, ast.Load):
        yield node
        if "[" not in ast.unparse(node):
            return
    for child in ast.iter_child_nodes(node):
        yield from _chains(child)


def _touches(written: set[str], needed: set[str]) -> bool:
    """Whether anything written is needed, or is part of it, or holds it."""
    return any(
        one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
        for one in written
        for other in needed
    )


def _changed(node: ast.AST) -> str | None:
    """What ``node`` assigns to, or may change by calling a method and dropping the result."""
    match node:
        case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
            return dotted(node)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=base))):
            return dotted(base)
        case _:
            return None


def _outer_chains(function: Function, context: type[ast.expr_context]) -> set[str]:
    """Attributes of ``self`` or of outer objects that ``function`` reads or changes, beside its result."""
    if context is ast.Store:
        names = {_changed(node) for node in ast.walk(function)}
    else:
        names = {dotted(node) for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    bound = _bound(function)
    return {name for name in names if name and "." in name and name.partition(".")[0] not in bound}


def _bound(function: Function) -> set[str]:
    """Names that mean something else in ``function`` than around it; ``self`` means the same in all methods."""
    given = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    assigned = {
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return (given | assigned) - {"self"}

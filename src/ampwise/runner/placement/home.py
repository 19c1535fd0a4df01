"""Where a script's GradScaler is made, and what it is called."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ampwise.runner.placement.checkpoint import find_checkpoints
from ampwise.runner.placement.loop import TrainingStep
from ampwise.runner.placement.names import calls_in_all, identifiers
from ampwise.runner.placement.source import Source, dotted


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where the scaler is made, and what it is called from there on."""

    name: str
    after: ast.stmt | None
    """The statement after which it is made; None: after the imports."""


def choose_home(source: Source, step: TrainingStep) -> Home:
    """Where to make the scaler so that every use can reach it, and it is made once a training run."""
    checkpoints = find_checkpoints(source, step.names)
    uses: list[ast.expr | ast.stmt] = [one.call for one in (*step.backwards, *step.steps)]
    uses += [one.node for one in checkpoints] + [load.statement for one in checkpoints for load in one.loads]
    word = free_name(source.tree, "scaler", "grad", "amp")
    creations = [node for node in ast.walk(source.tree) if isinstance(node, ast.Assign) and binds_optimizer(step, node)]
    for creation in sorted(creations, key=lambda node: -node.lineno):
        name = dotted(creation.targets[0]) or ""
        owner = source.class_of(creation)
        if owner is not None and name.startswith("self.") and all(_is_method_use(source, use, owner) for use in uses):
            return Home(name=f"self.{word}", after=_outside_branches(source, creation, uses))
        if not name.startswith("self.") and _reaches(source, creation, uses):
            return Home(name=word, after=_outside_branches(source, creation, uses))
    return Home(name=word, after=None)


def _reaches(source: Source, creation: ast.stmt, uses: Sequence[ast.expr | ast.stmt]) -> bool:
    """Whether a name bound beside ``creation`` is bound before every use, and seen by all."""
    scope = source.scope(creation)
    beside = [use.lineno for use in uses if source.scope(use) is scope]
    seen = isinstance(scope, ast.Module) or all(scope in source.ancestors(use) for use in uses)
    return seen and bool(beside) and creation.lineno < min(beside)


def free_name(scope: ast.AST, wanted: str, *prefixes: str) -> str:
    """``wanted``, or with one of the prefixes or a number, so that nothing in ``scope`` uses it."""
    used = identifiers(scope)
    names = (wanted, *(f"{prefix}_{wanted}" for prefix in prefixes))
    numbered = (f"{wanted}_{number}" for number in range(2, len(used) + 3))
    return next(name for name in (*names, *numbered) if name not in used)


def binds_optimizer(step: TrainingStep, node: ast.Assign) -> bool:
    """Whether ``node`` gives an optimizer a name."""
    for target in node.targets:
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            if step.names.is_optimizer(one) and not (isinstance(node.value, ast.Constant)):
                return any(True for _ in calls_in_all(node.value)) or isinstance(node.value, ast.Name)
    return False


def _is_method_use(source: Source, use: ast.AST, owner: ast.ClassDef) -> bool:
    """Whether ``use`` stands in a method of ``owner`` that has ``self``, or a function within one."""
    for one in source.ancestors(use):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and source.parent(one) is owner:
            return [arg.arg for arg in one.args.args[:1]] == ["self"]
    return False


def _outside_branches(source: Source, creation: ast.stmt, uses: Sequence[ast.expr | ast.stmt]) -> ast.stmt:
    """``creation``, or the outermost condition around it that no use stands under: another branch may run instead."""
    place = creation
    outer = source.outer_statement(place)
    while isinstance(outer, ast.If | ast.Try | ast.Match) and not any(outer in source.ancestors(use) for use in uses):
        place, outer = outer, source.outer_statement(outer)
    return place

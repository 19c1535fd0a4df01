"""Places a GradScaler: around each backward pass, before gradients are used, at each step, and in the checkpoint."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ampwise.runner.placement.checkpoint import Checkpoint, find_checkpoints
from ampwise.runner.placement.edits import Edits
from ampwise.runner.placement.home import Home, binds_optimizer
from ampwise.runner.placement.loop import Backward, Step, TrainingStep
from ampwise.runner.placement.source import Source, calls_in, dotted, walk_here


@dataclass(slots=True, kw_only=True)
class Scaling:
    """Places one GradScaler in one script."""

    source: Source
    step: TrainingStep
    edits: Edits
    notes: list[str]
    _name: str = ""
    _unscaled: set[tuple[ast.AST, str]] = field(default_factory=set)

    def obstacle(self) -> str | None:
        """Why no GradScaler can be placed here, if none can."""
        for step in self.step.steps:
            if step.closure:
                return (
                    f"line {step.call.lineno}: GradScaler refuses step(closure), which evaluates the loss by itself; "
                    "use bf16, or ampwise run --precision fp16, which scales below the script"
                )
        if not self.step.steps:
            return (
                "no optimizer step was found, and GradScaler unscales what an optimizer holds; "
                "use bf16, or ampwise run --precision fp16, which scales below the script"
            )
        return self._clip_obstacle()

    def place(self, home: Home) -> None:
        """Add every edit but the line that makes the scaler."""
        self._name = home.name
        for backward in self.step.backwards:
            self._scale(backward)
        for use in self.step.gradient_uses:
            self._unscale(use)
        for step in self.step.steps:
            self._step(step)
        for statement in update_places(self.source, self.step.steps):
            self.edits.insert_after(statement, f"{self._name}.update()")
        for checkpoint in find_checkpoints(self.source, self.step.names):
            self._save(checkpoint)

    def _scale(self, backward: Backward) -> None:
        """``loss.backward()`` becomes ``scaler.scale(loss).backward()``."""
        for loss in backward.losses:
            start, end = self.source.span(loss)
            if isinstance(backward.call.func, ast.Attribute) and loss is backward.call.func.value:
                whole = self.source.span(backward.call)[0]
                dot = self.source.text.rindex(".", end, self.source.span(backward.call.func)[1])
                self.edits.replace(whole, start, f"{self._name}.scale(")
                self.edits.replace(end, dot, ")")
            else:
                self.edits.replace(start, start, f"{self._name}.scale(")
                self.edits.replace(end, end, ")")

    def _step(self, step: Step) -> None:
        start, end = self.source.span(step.call)
        self.edits.replace(start, end, f"{self._name}.step({self.source.segment(step.optimizer)})")

    def _unscale(self, use: ast.stmt) -> None:
        for statement, optimizer in _unscale_places(self.source, self.step, use):
            key = (self.source.loop(statement) or self.source.scope(statement), optimizer)
            if key not in self._unscaled:
                self._unscaled.add(key)
                self.edits.insert_before(statement, f"{self._name}.unscale_({optimizer})")

    def _clip_obstacle(self) -> str | None:
        for use in self.step.gradient_uses:
            for statement, _ in _unscale_places(self.source, self.step, use):
                condition = _condition_of_step(self.source, self.step, statement)
                if condition is not None:
                    here, there = use.lineno, condition.lineno
                    return (
                        f"line {here} uses gradients at every backward pass, but line {there} steps only at some, and "
                        f"gradients are unscaled once a step; move line {here} under line {there} first"
                    )
        return None

    def _save(self, checkpoint: Checkpoint) -> None:
        start, text = checkpoint.entry(self.source, f"{self._name}.state_dict()")
        self.edits.replace(start, start, text)
        for load in checkpoint.loads:
            self.edits.insert_after(
                load.statement,
                f'if "{checkpoint.key}" in {load.mapping}:',
                f'{load.indent}{self._name}.load_state_dict({load.mapping}["{checkpoint.key}"])',
            )


def update_places(source: Source, steps: Sequence[Step]) -> list[ast.stmt]:
    """After which statements ``scaler.update()`` belongs: once an iteration, after its last step.

    Where every step of a loop may be left out on its own, each is followed by its own update: an update without a
    step raises.
    """
    groups: dict[ast.AST, list[ast.stmt]] = {}
    for step in steps:
        statement = source.statement(step.call)
        loop = source.loop(statement)
        while isinstance(loop, ast.For) and dotted(loop.target) == dotted(
            step.optimizer
        ):  # for opt in optimizers: opt.step()
            statement, loop = loop, source.loop(loop)
        groups.setdefault(loop or source.scope(statement), []).append(statement)
    return [place for group in groups.values() for place in _after_group(source, group)]


def _after_group(source: Source, statements: list[ast.stmt]) -> list[ast.stmt]:
    unique = list(dict.fromkeys(statements))
    chains = [[one, *(up for up in source.ancestors(one) if isinstance(up, ast.stmt))] for one in unique]
    for candidate in chains[0]:
        block = source.block(candidate)
        tops = [next((one for one in chain if any(one is other for other in block)), None) for chain in chains]
        found = [top for top in tops if top is not None]
        if len(found) < len(tops):
            continue
        if any(_always_runs(source, one, top) for one, top in zip(unique, found, strict=True)):
            return [max(found, key=lambda one: one.lineno)]
        break
    return unique


def _always_runs(source: Source, statement: ast.stmt, top: ast.stmt) -> bool:
    """Whether running ``top``, which holds ``statement`` or is it, always runs ``statement``."""
    between = [up for up in (statement, *source.ancestors(statement)) if isinstance(up, ast.stmt)]
    return all(isinstance(one, ast.With) for one in between[1 : between.index(top) + 1])


def _unscale_places(source: Source, step: TrainingStep, use: ast.stmt) -> Iterator[tuple[ast.stmt, str]]:
    """Before which statement, and for which optimizers, gradients must be unscaled because of ``use``."""
    scope = source.scope(use)
    after = [one for one in step.steps if source.scope(one.call) is scope and one.call.lineno >= use.lineno]
    if after:
        before_use = [
            one for one in step.backwards if source.scope(one.call) is scope and one.call.lineno <= use.lineno
        ]
        if before_use or not any(source.scope(one.call) is scope for one in step.backwards):
            for optimizer in _optimizers_of(source, step, use, after):
                yield _outside_lesser_loops(source, use, after), optimizer
        return
    if isinstance(scope, ast.Module):
        return
    for call in step.names.callers(scope):
        statement = source.statement(call)
        if source.scope(statement) is not scope:
            yield from _unscale_places(source, step, statement)


def _outside_lesser_loops(source: Source, use: ast.stmt, steps: Sequence[Step]) -> ast.stmt:
    """``use``, or the loop over parameters that it stands in: one that holds no step."""
    loop = source.loop(use)
    while loop is not None and not any(loop in source.ancestors(step.call) for step in steps):
        use, loop = loop, source.loop(loop)
    return use


def _optimizers_of(source: Source, step: TrainingStep, use: ast.stmt, after: Sequence[Step]) -> list[str]:
    """The optimizer whose parameters ``use`` names, else the next that steps."""
    written = list(dict.fromkeys(source.segment(one.optimizer) for one in after))
    named = {name for node in walk_here(use) if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node))}
    own = [name for name in written if named & _parameters_of(source, step, name)]
    return own or written[:1]


def _parameters_of(source: Source, step: TrainingStep, optimizer: str) -> set[str]:
    """Names of the models with whose parameters ``optimizer`` is made."""
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Assign)
            and binds_optimizer(step, node)
            and any(dotted(one) == optimizer for one in node.targets)
        ):
            for call in calls_in(node.value):
                if isinstance(call.func, ast.Attribute) and call.func.attr == "parameters":
                    found.add(dotted(call.func.value) or "")
    return found - {""}


def _condition_of_step(source: Source, step: TrainingStep, use: ast.stmt) -> ast.If | None:
    """The ``if`` under which every step after ``use`` stands, and ``use`` does not."""
    around_use = {id(one) for one in (use, *source.ancestors(use))}
    conditions: list[ast.If | None] = []
    for one in step.steps:
        if source.scope(one.call) is source.scope(use) and one.call.lineno > use.lineno:
            ifs = [up for up in source.ancestors(one.call) if isinstance(up, ast.If) and id(up) not in around_use]
            loop = source.loop(use)
            inside = [up for up in ifs if loop is None or loop in source.ancestors(up)]
            conditions.append(inside[-1] if inside else None)
    if conditions and all(conditions):
        return conditions[0]
    return None

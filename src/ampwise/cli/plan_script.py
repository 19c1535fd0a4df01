"""A plan at a script's own model: what holds in each of its modules, and where the plan does not fit."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ampwise._base.errors import CannotRunError
from ampwise._base.text import inert, inert_line
from ampwise.cli.exits import say
from ampwise.cli.unwind import signals_unwind
from ampwise.plan.binding import gathered, idle_in_words, misfits
from ampwise.plan.plan import Plan, Resolved
from ampwise.records.layout import LayoutRecord, ModuleEntry
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFormat:
    """What holds in one module."""

    module: ModuleEntry
    resolved: Resolved
    is_change: bool
    """Whether another rule decides than in the module around it."""


def layout_of(target: Target) -> LayoutRecord:
    """The modules of the script's models: it makes one step in a process of its own, and keeps no file of it.

    A whole step, not only the first forward: a script with several models (a GAN, a teacher) calls the others later.

    Raises:
        CannotRunError: the script failed before its first step, or calls no model.
    """
    from ampwise.runner.changes import ChangeWatch
    from ampwise.runner.child import run_child

    with tempfile.TemporaryDirectory(prefix="ampwise-plan-") as scratch, signals_unwind():
        changes = ChangeWatch(str(Path.cwd()), scratch=scratch)
        spec = LaunchSpec(precision="fp32", stop_after=1, instruments=("layout",), scratch=scratch)
        record = run_child(target, spec)
        for note in changes.notes():
            if not note.startswith("what the script saved"):  # it is gone with its folder
                say(note)
    found = record.layout
    if found is not None and found.modules:
        return found
    if record.failure is not None:
        what = f"{record.failure.kind}: {inert(record.failure.message)}"
        raise CannotRunError(f"the script failed before its model was called: {what}")
    raise CannotRunError("the script calls no model in its first step, so that there is nothing to show the plan at")


def module_formats(plan: Plan, layout: LayoutRecord) -> list[ModuleFormat]:
    """What the plan decides for each module, in the models' own order."""
    found: list[ModuleFormat] = []
    decided: dict[tuple[str, str], int | None] = {}
    for module in layout.modules:
        resolved = plan.resolve(module.path, root=module.root)
        above = decided.get((module.root, module.path.rpartition(".")[0])) if module.path else None
        decided[module.root, module.path] = resolved.index
        found.append(ModuleFormat(module=module, resolved=resolved, is_change=resolved.index != above))
    return found


def misfits_with(plan: Plan, layout: LayoutRecord) -> tuple[str, ...]:
    """Where the plan does not fit the models."""
    return tuple(gathered(misfits(plan, _paths(layout)), [entry.path for entry in layout.modules]))


def idle_rules_in(plan: Plan, layout: LayoutRecord) -> str | None:
    """A sentence for the rules that a preset has for other models; None where there are none."""
    idle = idle_in_words(plan, _paths(layout))
    return None if idle is None else f"no module for {idle}"


def _paths(layout: LayoutRecord) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = {}
    for entry in layout.modules:
        modules.setdefault(entry.root, []).append(entry.path)
    return modules


def format_lines(plan: Plan, formats: list[ModuleFormat]) -> Iterator[str]:
    """How many modules are in which format, and each place where the format changes on the way down."""
    counts = Counter(one.resolved.compute for one in formats)
    yield f"  modules     {', '.join(f'{number} in {name}' for name, number in counts.most_common())}"
    changes = [one for one in formats if one.is_change]
    width = min(40, max((len(one.module.name) for one in changes), default=0))
    for one in changes:
        name = inert_line(one.module.name, max_length=200) or one.module.root
        rule = one.resolved.rule
        decided = "the default" if rule is None else f"rules[{one.resolved.index}] {rule.place()}"
        formats_there = plan.default if rule is None else rule.formats()
        yield f"    {name:<{width}}  {formats_there} by {decided}"

"""What ``ampwise plan`` prints for a person."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator

from ampwise._base.text import inert_line
from ampwise.plan.diff import PlanDiff
from ampwise.plan.footprint import footprint
from ampwise.plan.operators import cast_lists
from ampwise.plan.plan import Lists, Plan, Rule
from ampwise.plan.presets import Preset


def plan_lines(plan: Plan) -> Iterator[str]:
    """A plan: its own formats, its lists, and its rules with their reasons."""
    yield from _row("default", _default(plan))
    yield from _row("parameters", _parameters(plan))
    yield from _row("memory", footprint(plan).words())
    yield from _row("lists", _lists(plan))
    if not plan.rules:
        yield from _row("rules", "none")
        return
    yield from _row("rules", "the last that holds at a place decides there")
    for index, rule in enumerate(plan.rules):
        yield from rule_lines(rule, mark=f"[{index}]")


def rule_lines(rule: Rule, *, mark: str) -> Iterator[str]:
    """A rule behind a mark, its reason below."""
    yield f"  {mark:<4} {rule.place()}: {rule.formats()}"
    if rule.because:
        yield from _filled(inert_line(rule.because, max_length=1000), indent=9)


def diff_lines(found: PlanDiff) -> Iterator[str]:
    """How two plans differ: what goes with a minus, what comes with a plus."""
    for key in found.keys:
        yield f"  {key.key}: {key.before or 'none'} -> {key.after or 'none'}"
    for rule in found.removed:
        yield from rule_lines(rule, mark="-")
    for rule in found.added:
        yield from rule_lines(rule, mark="+")
    for change in found.changed:
        yield from rule_lines(change.before, mark="-")
        yield from rule_lines(change.after, mark="+")
    if found.is_reordered:
        yield "  the rules that both have stand in another order: another may be the last that holds"


def preset_lines(preset: Preset) -> Iterator[str]:
    """A preset: what it does, and where it is from."""
    yield from _row(preset.name, preset.about)
    yield from _filled("; ".join(preset.sources), indent=14)


def _default(plan: Plan) -> str:
    output = f"; results of the model in {plan.output}" if plan.output else ""
    return f"{plan.default}{f', gradients in {plan.grad}' if plan.grad else ''}{output}"


def _parameters(plan: Plan) -> str:
    low = plan.parameters not in {"fp32", "fp64", "tf32"}
    return f"{plan.parameters}, {plan.updates.words}" if low else plan.parameters


def _lists(plan: Plan) -> str:
    whose = "CUDA's on every device" if plan.lists is Lists.CUDA else "the device's own"
    if plan.torch is not None:
        return f"{whose}, as in torch {plan.torch}"
    installed = cast_lists().torch_version
    return f'{whose}, of the installed torch: not pinned (torch = "{installed}" pins them)'


def _row(name: str, text: str) -> Iterable[str]:
    return _filled(text, indent=14, begin=f"  {name:<12}")


def _filled(text: str, *, indent: int, begin: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        shutil.get_terminal_size().columns,
        initial_indent=" " * indent if begin is None else begin,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )

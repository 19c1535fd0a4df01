"""What the rules on infinities and NaN share: where they came from, what they looked like, what keeps them away."""

from collections.abc import Iterator, Sequence
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.doctor.reruns import (
    fails_in_fp32,
    fp32_origin,
    is_half_by_itself,
    is_in_fp32,
    stays_in_fp32,
    what_removed_it,
)
from ampwise.formats.spec import FloatFormat
from ampwise.formats.table import find_format
from ampwise.plan.plan import Rule
from ampwise.plan.writing import rule_to_toml
from ampwise.records.finding import Confidence, Finding, RuleInfo
from ampwise.records.nonfinite import Operand, Origin
from ampwise.records.run import Role, RunRecord
from ampwise.records.site import Phase, Site

OR_BF16: Final = "; or compute in bf16, which has fp32's range"
_MAX_SHOWN: Final = 3
"""Places a rule reports by themselves; one fault in every layer is one fault."""


def origins(case: Case) -> tuple[Origin, ...]:
    """Operators that made infinities or NaN of finite numbers, the first first: of the trace where there is one.

    Behind them stand those that fail once the first ones' modules are in fp32: what was infinite hid them.
    """
    first = next((seen for run in (case.rerun(Role.TRACED), case.run) if (seen := _seen_in(run))), ())
    later = [one for run in case.recording.runs if run.role is Role.RESCUED for one in _seen_in(run)]
    modules = {one.site.module for one in first}
    return (*first, *{one.site: one for one in later if one.site.module not in modules}.values())


def seen_beside(case: Case, origin: Origin) -> tuple[Origin, ...]:
    """All that was seen in the run in which the origin was, itself among it."""
    everything = map(_seen_in, case.recording.runs)
    return next((seen for seen in everything if any(one is origin for one in seen)), ())


def _seen_in(run: RunRecord | None) -> tuple[Origin, ...]:
    return run.nonfinite.origins if run is not None and run.nonfinite is not None else ()


def format_of(origin: Origin) -> str | None:
    """The format of the operator's result, as users say it."""
    if origin.output is not None:
        return origin.output.dtype
    return origin.inputs[0].dtype if origin.inputs else None


def limits_of(origin: Origin) -> FloatFormat | None:
    """The limits of that format."""
    return find_format(format_of(origin) or "")


def seen_in(origin: Origin) -> str:
    """The figures that show it: the inputs' formats and ranges, and what became of them."""
    inputs = "; ".join(_range(one) for one in origin.inputs[:3])
    output = origin.output
    made = "" if output is None else f"its {output.dtype} result holds {losses(output)}"
    shown = ", ".join(part for part in (f"inputs {inputs}" if inputs else "", made) if part)
    place = f"step {origin.step}" if origin.rank is None else f"step {origin.step} of rank {origin.rank}"
    return f"{place}: {shown}" if shown else place


def findings(
    case: Case, info: RuleInfo, found: Sequence[tuple[Origin, str, str]], *, helps_in_fp32: bool = True
) -> Iterator[Finding]:
    """A finding for each of the first origins, with its evidence and, where fp32 helps, the plan's rule.

    Args:
        case: The case.
        info: The rule that found them.
        found: Each origin with the finding's message and its remedy.
        helps_in_fp32: Whether computing the module in fp32 would put it right.
    """
    apart = list(_by_module(found))
    for place, (origin, message, remedy, near) in enumerate(apart[:_MAX_SHOWN], 1):
        more = apart[_MAX_SHOWN:] if place == _MAX_SHOWN else ()
        beside = [f"{', '.join(_at_line(one) for one in near[:_MAX_SHOWN])} of this module too"] if near else []
        others = [f"and at {len(more)} more places: {', '.join(_short(one[0]) for one in more[:3])}"] if more else []
        stays = helps_in_fp32 and stays_in_fp32(case, origin)
        told = _without_rule(origin, remedy) if stays else remedy
        yield Finding(
            rule=info.id,
            severity=info.severity,
            confidence=Confidence.CERTAIN if origin.site.op else Confidence.LIKELY,
            message=message,
            site=origin.site,
            evidence="; ".join([seen_in(origin), *beside, *what_removed_it(case), *others]),
            remedy=with_precision(case, origin.site, told) if helps_in_fp32 else remedy,
            plan_rule=rule_that_helps(case, origin.site, because_of(origin)) if helps_in_fp32 and not stays else None,
        )


def _without_rule(origin: Origin, remedy: str) -> str:
    """What to do where the module's being in fp32 was seen not to help."""
    if origin.site.phase is not Phase.FORWARD:
        return remedy
    return (
        f"The module computes in {format_of(origin) or 'its format'} there with autocast off, too: leave out the "
        "`.half()` or `.to(dtype)` at that line or before it."
    )


def _by_module(
    found: Sequence[tuple[Origin, str, str]],
) -> Iterator[tuple[Origin, str, str, list[Origin]]]:
    """Each module's first origin with the others of that module: one rule of a plan serves them all."""
    others: dict[str, list[Origin]] = {}
    for origin, message, remedy in found:
        module = origin.site.module
        if module and module in others:
            others[module].append(origin)
        else:
            near = others.setdefault(module, []) if module else []
            yield origin, message, remedy, near


def with_precision(case: Case, site: Site, remedy: str) -> str:
    """The remedy, with what else the script's own precision or fp32's own fault ask for."""
    if fails_in_fp32(case):
        first = fp32_origin(case)
        if is_in_fp32(case):
            return f"The run is in fp32 already, so precision cannot fix it. {remedy}"
        where = f" at {place_words(first.site)}" if first is not None else ""
        return f"The same run in fp32 fails too{where}, so precision cannot fix it. {remedy}"
    if is_half_by_itself(case):
        return (
            f"{remedy} The script keeps its parameters in half precision, which leaves a plan's rules no room: leave "
            "them in fp32 and let autocast cast."
        )
    if case.run.plans_itself and site.module:
        own = inert_line(case.run.left_alone or "", max_length=120)
        return f"{remedy} The script's own plan decides there: give that rule to it, to {own}."
    if case.run.left_alone is not None and site.module:
        return (
            f"{remedy} The script has an autocast of its own, beside which `ampwise run --plan` applies no rule: in "
            f"{inert_line(site.module)}'s forward write `with torch.autocast(x.device.type, enabled=False):` and "
            "compute with `x.float()`."
        )
    return remedy


def remedy_at(case: Case, site: Site, remedy: str, *, or_else: str = "") -> str:
    """The remedy that a plan carries out; where none reaches the place, what to write there."""
    if site.module and is_half_by_itself(case):
        return f"Compute {inert_line(site.module)} with autocast off, on `x.float()`{or_else}."
    if site.module:
        return remedy
    where = "a model as a whole" if site.module == "" else "a line outside of the model"
    return (
        f"No rule of a plan reaches {where}: there write `with torch.autocast(x.device.type, enabled=False):` and "
        f"compute with `x.float()`{or_else}."
    )


def because_of(origin: Origin) -> str:
    """A plan's reason: the operator, its format and the step."""
    return f"{format_of(origin) or 'its format'} fails in {origin.site.op or 'an operator'} at step {origin.step}"


def rule_that_helps(case: Case, site: Site, because: str) -> str | None:
    """The rule of a plan that computes the module in fp32; None where fp32 has a fault too, or weights are no fp32."""
    return None if fails_in_fp32(case) or is_half_by_itself(case) else kept_in_fp32(site, because)


def kept_in_fp32(site: Site, because: str) -> str | None:
    """The rule of a plan that computes the module in fp32; None for the whole model, or where no module is known."""
    if not site.module:
        return None
    return rule_to_toml(Rule(module=site.module, compute="fp32", because=because))


def place_words(site: Site) -> str:
    """The operator and its module, for a sentence: ``aten.mm in layers.1.wo``."""
    op = site.op or "an operator"
    return f"{inert_line(op)} in {inert_line(site.module)}" if site.module else inert_line(op)


def _at_line(origin: Origin) -> str:
    op = inert_line(origin.site.op or "an operator")
    return f"{op} ({inert_line(origin.site.where)})" if origin.site.where else op


def _short(origin: Origin) -> str:
    return place_words(origin.site)


def _range(one: Operand) -> str:
    shape = "x".join(map(str, one.shape)) or "single"
    if one.minimum is None or one.maximum is None:
        return f"{one.dtype} {shape}"
    return f"{one.dtype} {shape} from {one.minimum:.4g} to {one.maximum:.4g}"


def losses(one: Operand) -> str:
    """How many of its numbers are not finite: ``659 inf and 2 NaN``."""
    parts = [f"{one.num_infinite} inf" * bool(one.num_infinite), f"{one.num_nan} NaN" * bool(one.num_nan)]
    return " and ".join(part for part in parts if part) or "no finite number"

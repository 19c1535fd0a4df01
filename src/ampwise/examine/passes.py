"""Which runs of a script an examination takes: one that is watched, and those its record asks for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from ampwise.plan.file import parse_plan
from ampwise.plan.plan import Plan, Rule
from ampwise.plan.writing import to_toml
from ampwise.records.crash_kind import CrashKind, crash_kind, may_be_numeric
from ampwise.records.nonfinite import Origin
from ampwise.records.run import Role, RunRecord
from ampwise.runner.instruments import ROWS
from ampwise.runner.spec import Amp, LaunchSpec

_TRACER: Final = ("nonfinite",)
_ACCOUNTS: Final = ("process",)
"""What a step costs in CPU time: the figure to compare with, for others may share the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One run of the script, and why it is made."""

    role: Role
    spec: LaunchSpec
    fp32_modules: tuple[str, ...] = ()
    """Suspects that are kept in fp32."""


def watched(spec: LaunchSpec) -> Pass:
    """The first run: every instrument looks at steps of its own."""
    return Pass(role=Role.WATCHED, spec=replace(spec, instruments=tuple(row.name for row in ROWS)))


def follow_ups(record: RunRecord, spec: LaunchSpec) -> Iterator[Pass]:
    """The runs that a watched run's record asks for.

    A run in low precision is always made again in fp32: that shows what precision gained, and which faults it has no
    part in. One with a fault is traced, in fp32 too, and made again without its loss scale if it had one; a crash
    whose words tell that no number is to blame is only made again in fp32, and one before any training not at all.

    Args:
        record: Of the watched run.
        spec: What the watched run was told, but for its instruments.
    """
    plain = replace(spec, instruments=())
    if has_not_started(record):
        return
    is_traced = is_faulty(record) and (record.failure is None or may_be_numeric(record.failure))
    if is_traced:
        yield Pass(role=Role.TRACED, spec=replace(spec, instruments=_TRACER, stop_after=_last_step(record, spec)))
        if record.final_scale is not None:
            yield Pass(role=Role.UNSCALED, spec=replace(plain, amp=Amp.UNSCALED))
    if record.precision != "fp32" or record.left_alone is not None:
        looking = _TRACER if is_traced else _ACCOUNTS
        fp32 = replace(plain, precision="fp32", emulate=None, plan=None, amp=Amp.OFF, instruments=looking)
        yield Pass(role=Role.IN_FP32, spec=fp32)


def rescue(
    seen: RunRecord, spec: LaunchSpec, *, kept: tuple[str, ...] = (), in_fp32: RunRecord | None = None
) -> Pass | None:
    """The run with the modules that made infinities or NaN in fp32; None where the trace names no more of them.

    Args:
        seen: The run whose trace names them: the traced one, or a rescued one in which the next module failed.
        spec: What the watched run was told, its plan included, whose rules stay in front.
        kept: Modules that ``seen`` had in fp32 already.
        in_fp32: The run in fp32: the infinities that it made and took out again are nobody's fault.
    """
    modules = tuple(dict.fromkeys((*kept, *suspects(seen, in_fp32=in_fp32))))
    if modules == kept or "parameters" in (seen.left_alone or ""):  # those in half precision leave a rule no room
        return None
    given = parse_plan(spec.plan) if spec.plan is not None else Plan(default=spec.emulate or seen.precision)
    rules = tuple(Rule(module=module, compute="fp32", because="under suspicion") for module in modules)
    named = {rule.selector for rule in rules}
    plan = replace(given, rules=(*(one for one in given.rules if one.selector not in named), *rules))
    return Pass(
        role=Role.RESCUED,
        spec=replace(spec, instruments=_TRACER, plan=to_toml(plan), rules_stay=True),
        fp32_modules=modules,
    )


def suspects(traced: RunRecord, *, in_fp32: RunRecord | None = None) -> tuple[str, ...]:
    """The modules in which finite numbers became infinite or NaN, in the order they did; the whole model is none."""
    meant = {one.site for one in _origins(in_fp32)} if in_fp32 is not None and in_fp32.keeps_numbers else frozenset()
    found = (one.site for one in _origins(traced) if one.site not in meant)
    return tuple(dict.fromkeys(site.module for site in found if site.module))


def _origins(record: RunRecord) -> tuple[Origin, ...]:
    return record.nonfinite.origins if record.nonfinite is not None else ()


def is_faulty(record: RunRecord) -> bool:
    """Whether the run crashed, its loss was not finite, or it skipped several steps in a row."""
    seen = record.nonfinite
    has_seen = seen is not None and bool(seen.origins or seen.loss_steps or seen.weight_steps)
    return not record.has_finished or has_seen or record.has_lost_numbers


def still_fails(rescued: RunRecord, first: RunRecord) -> bool:
    """Whether a rescued run shows what the first one showed: a crash, a loss that is not finite, else skipped steps."""
    return not rescued.has_finished or rescued.shows_loss_of(first)


def has_not_started(record: RunRecord) -> bool:
    """Whether the script ended before any training for a reason that every further run has too."""
    failure = record.failure
    return failure is not None and crash_kind(failure) is CrashKind.NOT_STARTED


def _last_step(record: RunRecord, spec: LaunchSpec) -> int | None:
    """Tracing is slow, so it ends a step after the first fault; a crash or an early end is gone to the end of."""
    bad = record.first_bad_loss
    if bad is None or not record.has_finished:
        return spec.stop_after
    return min(bad + 2, spec.stop_after or bad + 2)

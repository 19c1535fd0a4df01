"""What the rules on crashes share: the failure, the place, what was seen there, whether fp32 has it too."""

from collections.abc import Iterator

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.records.crash import CrashTensor
from ampwise.records.crash_kind import CrashKind, crash_kind
from ampwise.records.finding import Confidence, Finding, RuleInfo
from ampwise.records.run import UNTOLD, Failure, Role, RunEnd
from ampwise.records.site import Phase, Site


def crashed(case: Case, kind: CrashKind) -> Failure | None:
    """Why the run failed, where it is of that kind."""
    failure = case.run.failure
    if failure is None or case.run.has_finished:
        return None
    if case.run.end is RunEnd.OUT_OF_MEMORY:
        return failure if kind is CrashKind.OUT_OF_MEMORY else None
    return failure if crash_kind(failure) is kind else None


def finding(
    case: Case,
    info: RuleInfo,
    message: str,
    *,
    remedy: str = "",
    confidence: Confidence = Confidence.CERTAIN,
    plan_rule: str | None = None,
) -> Finding:
    """What a rule on crashes found: its place and evidence are the crash's."""
    return Finding(
        rule=info.id,
        severity=info.severity,
        confidence=confidence,
        message=message,
        site=site_of(case),
        evidence="; ".join(seen(case)),
        remedy=remedy or info.remedy,
        plan_rule=plan_rule,
    )


def site_of(case: Case) -> Site:
    """Where it crashed: what the crash's record says, else the line alone."""
    if case.run.crash is not None:
        return case.run.crash.site
    where = case.run.failure.where if case.run.failure is not None else None
    file, _, line = (where or "").rpartition(":")
    return Site(phase=Phase.OTHER, file=file or None, line=int(line) if line.isdigit() else None)


def seen(case: Case) -> Iterator[str]:
    """When, the exception's own words, the call with its tensors, and what became of the run in fp32."""
    failure, crash, num_steps = case.run.failure, case.run.crash, len(case.run.steps)
    if failure is None:
        return
    when = f"after {num_steps} step{'s' * (num_steps != 1)}" if num_steps else "before the first step ended"
    if case.run.reason == UNTOLD:
        when = "at a step that its process could not tell"
    said = inert_line(failure.message, max_length=240)
    yield f"{inert_line(failure.kind)} {when}" + (f': "{said}"' if said else "")
    if crash is not None and crash.expression:
        tensors = ", ".join(map(tensor_words, crash.tensors))
        yield inert_line(crash.expression, max_length=120) + (f" with {tensors}" if tensors else "")
    same = in_fp32(case)
    if same is not None:
        has_raised = not failure.kind.startswith(("exit status", "signal"))
        what = ("crashes", "does not crash") if has_raised else ("ends", "runs on")
        yield f"in fp32 it {what[0]} the same way" if same else f"in fp32 it {what[1]}"


def in_fp32(case: Case) -> bool | None:
    """Whether the run in fp32 crashes the same way; None where there was none that says so."""
    again, failure = case.rerun(Role.IN_FP32), case.run.failure
    if again is None or failure is None or again is case.run:
        return None
    if again.has_finished:
        return False
    return again.failure is not None and again.failure.kind == failure.kind and again.failure.where == failure.where


def is_in_fp32_already(case: Case) -> bool:
    """Whether the run that crashed computed in fp32 throughout."""
    return case.run.precision in {"fp32", "tf32"} and case.run.left_alone is None


def has_own_precision(case: Case) -> bool:
    """Whether the script does mixed precision by itself, so that a plan's rules do not reach it."""
    return case.run.left_alone is not None


def tensor_words(tensor: CrashTensor) -> str:
    """A tensor for a sentence: ``x fp32 4x8 on cpu``."""
    shape = "x".join(map(str, tensor.shape)) or "single"
    return f"{inert_line(tensor.name, max_length=60)} {tensor.dtype} {shape} on {tensor.device}"


def place_words(case: Case) -> str:
    """The call, its module and its line, for a sentence: ``matmul() in head (train.py:8)``.

    The line alone where no more is known.
    """
    site = site_of(case)
    if not site.op and site.module is None and site.where:
        return inert_line(site.where)
    op = f"{inert_line(site.op)}()" if site.op else "a call"
    module = f" in {inert_line(site.module)}" if site.module else " in the model" if site.module == "" else ""
    return f"{op}{module}" + (f" ({inert_line(site.where)})" if site.where else "")

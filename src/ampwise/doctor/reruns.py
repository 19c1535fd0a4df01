"""What the other runs of an examination say of a fault: which of them did without it."""

from collections.abc import Iterator
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.records.nonfinite import NonFiniteRecord, Origin
from ampwise.records.run import Role, RunRecord

_MAX_NAMED: Final = 4
_WORDS: Final = {
    Role.RESCUED: "with the suspected modules in fp32",
    Role.UNSCALED: "without the loss scale",
    Role.IN_FP32: "in fp32",
}


def fp32_run(case: Case) -> RunRecord | None:
    """The run in fp32; None where there was none, or where the script's own half-precision tensors stayed so."""
    for run in (case.rerun(Role.IN_FP32), case.run):
        if run is not None and run.precision == "fp32" and run.left_alone is None:
            return run if run.steps else None
    return None


def seen_in_fp32(case: Case) -> NonFiniteRecord | None:
    """What a run in fp32 beside the one that is judged lost; None where there was none, or nobody looked."""
    run = fp32_run(case)
    return None if run is None or run is case.run else run.nonfinite


def fp32_origin(case: Case) -> Origin | None:
    """The first operator that made infinities or NaN in the fp32 run."""
    for run in (case.rerun(Role.TRACED) if is_in_fp32(case) else None, fp32_run(case)):
        found = run.nonfinite.origins if run is not None and run.nonfinite is not None else ()
        if found:
            return next((one for one in found if one.vanished is None), found[0])
    return None


def is_in_fp32(case: Case) -> bool:
    """Whether the run that is judged computed in fp32 throughout."""
    return fp32_run(case) is case.run


def fails_in_fp32(case: Case) -> bool:
    """Whether fp32 loses its numbers too, so that no precision helps."""
    run = fp32_run(case)
    return run is not None and (run.has_lost_numbers or _has_spoilt_weights(run))


def stays_in_fp32(case: Case, origin: Origin) -> bool:
    """Whether the operator failed as well where its module was in fp32."""
    run = _counted(case, Role.RESCUED)
    found = run.nonfinite.origins if run is not None and run.nonfinite is not None else ()
    at = origin.site
    same = any((one.site.module, one.site.op, one.site.phase) == (at.module, at.op, at.phase) for one in found)
    return run is not None and at.module in run.fp32_modules and same


def _has_spoilt_weights(run: RunRecord) -> bool:
    return run.nonfinite is not None and bool(run.nonfinite.weight_steps)


def is_half_by_itself(case: Case) -> bool:
    """Whether the script keeps its parameters in half precision by itself."""
    return "parameters" in (case.run.left_alone or "")


def what_removed_it(case: Case) -> Iterator[str]:
    """Which of the reruns did without the fault, in words; nothing where the fault does not show in losses or skips."""
    if not case.run.has_lost_numbers:
        return
    for role, text in _WORDS.items():
        run = _counted(case, role)
        if run is not None and run.steps and run is not case.run:
            what = f"stays{_next_place(run)}" if run.shows_loss_of(case.run) or _has_spoilt_weights(run) else "is gone"
            yield f"{_kept(run) or text} it {what}"


def _next_place(run: RunRecord) -> str:
    """Where a rescued run loses its numbers: what comes next once the first fault is put right."""
    first = run.nonfinite.first if run.role is Role.RESCUED and run.nonfinite is not None else None
    if first is None or first.site.op is None:
        return ""
    where = f" in {inert_line(first.site.module, max_length=60)}" if first.site.module else ""
    return f": then {inert_line(first.site.op)}{where} fails, in {first.site.phase.value}"


def _kept(run: RunRecord) -> str:
    """The modules that a rescued run had in fp32, by name where they are few."""
    names = [inert_line(name, max_length=60) for name in run.fp32_modules]
    return f"with {', '.join(names)} in fp32" if 0 < len(names) <= _MAX_NAMED else ""


def _counted(case: Case, role: Role) -> RunRecord | None:
    """The rerun of that role, if it could do what it was made for.

    Half-precision parameters and a plan of the script's own leave no room for a rescue.
    """
    if role is Role.IN_FP32:
        return fp32_run(case)
    run = case.rerun(role)
    has_no_room = run is not None and ("parameters" in (run.left_alone or "") or run.plans_itself)
    return None if role is Role.RESCUED and has_no_room else run

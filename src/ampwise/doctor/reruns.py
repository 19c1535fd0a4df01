"""What the other runs of an examination say of a fault: which of them did without it."""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from ampwise._base.text import inert_line
from ampwise.doctor.case import Case
from ampwise.records.nonfinite import Origin
from ampwise.records.run import Role, RunRecord

_SKIPS_IN_A_ROW: Final = 4
"""A dynamic loss scale comes down by a few skipped steps at the start."""
_MAX_NAMED: Final = 4
_WORDS: Final = {
    Role.RESCUED: "with the suspected modules in fp32",
    Role.UNSCALED: "without the loss scale",
    Role.IN_FP32: "in fp32",
}


def has_fault(run: RunRecord | None) -> bool:
    """Whether a run was seen to have lost its numbers: a loss that is not finite, or many skipped steps in a row."""
    if run is None:
        return False
    return first_bad_loss(run) is not None or longest_skips(run) >= _SKIPS_IN_A_ROW


def first_bad_loss(run: RunRecord) -> int | None:
    """The first step whose loss is not finite."""
    return next((one.index for one in run.steps if one.loss is not None and not math.isfinite(one.loss)), None)


def longest_skips(run: RunRecord) -> int:
    """The most steps in a row that were left out."""
    runs = ((skipped, len(list(group))) for skipped, group in groupby(one.skipped for one in run.steps))
    return max((length for skipped, length in runs if skipped), default=0)


def fp32_run(case: Case) -> RunRecord | None:
    """The run in fp32; None where there was none, or where the script's own half-precision tensors stayed so."""
    for run in (case.rerun(Role.IN_FP32), case.run):
        if run is not None and run.precision == "fp32" and run.left_alone is None:
            return run if run.steps else None
    return None


def fp32_origin(case: Case) -> Origin | None:
    """The first operator that made infinities or NaN in the fp32 run."""
    run = fp32_run(case)
    return run.nonfinite.first if run is not None and run.nonfinite is not None else None


def fails_in_fp32(case: Case) -> bool:
    """Whether fp32 loses its numbers too, so that no precision helps."""
    return has_fault(fp32_run(case))


def is_half_by_itself(case: Case) -> bool:
    """Whether the script keeps its parameters in half precision by itself."""
    return "parameters" in (case.run.left_alone or "")


def what_removed_it(case: Case) -> Iterator[str]:
    """Which of the reruns did without the fault, in words; nothing where the fault does not show in losses or skips."""
    if not has_fault(case.run):
        return
    lost = first_bad_loss(case.run) is not None  # then skips beside a finite loss are the scale coming down
    for role, text in _WORDS.items():
        run = _counted(case, role)
        if run is not None and run.steps and run is not case.run:
            stays = first_bad_loss(run) is not None if lost else has_fault(run)
            yield f"{_kept(run) or text} it {'stays' if stays else 'is gone'}"


def _kept(run: RunRecord) -> str:
    """The modules that a rescued run had in fp32, by name where they are few."""
    names = [inert_line(name, max_length=60) for name in run.fp32_modules]
    return f"with {', '.join(names)} in fp32" if 0 < len(names) <= _MAX_NAMED else ""


def _counted(case: Case, role: Role) -> RunRecord | None:
    """The rerun of that role, if it could do what it was made for: half-precision parameters leave no room for it."""
    if role is Role.IN_FP32:
        return fp32_run(case)
    run = case.rerun(role)
    return None if run is not None and role is Role.RESCUED and "parameters" in (run.left_alone or "") else run

"""What the loss scale did in the run that is judged."""

from ampwise.doctor.case import Case
from ampwise.doctor.causes import Cause, cause_of
from ampwise.doctor.faults import faults
from ampwise.doctor.poles import is_pole
from ampwise.records.run import NUM_SKIPS, StepRecord
from ampwise.records.scaling import History, history_of
from ampwise.records.scaling_signs import Sign, SignKind, signs


def histories(case: Case) -> tuple[History, ...]:
    """The loss scale at each optimizer's steps."""
    numbers = sorted({step.optimizer for step in case.steps if step.scale is not None})
    return tuple(history_of(case.run, optimizer=number) for number in numbers)


def signs_of(case: Case, kind: SignKind) -> tuple[Sign, ...]:
    """The signs of one kind that the scale's history shows."""
    return tuple(sign for history in histories(case) for sign in signs(history) if sign.kind is kind)


def scaled_steps(case: Case) -> tuple[StepRecord, ...]:
    """The steps that had a loss scale."""
    return tuple(step for step in case.steps if step.scale is not None)


def skips_often(case: Case) -> bool:
    """Whether steps were skipped in a row for longer than a scale takes to settle."""
    return bool(scaled_steps(case)) and case.run.longest_skips >= NUM_SKIPS


def forward_is_lost(case: Case) -> bool:
    """Whether the loss itself was not finite, so that no scale of it can be at fault."""
    shown = {Cause.OVERFLOW, Cause.MASK, Cause.INVALID, Cause.EMPTY_ROW, Cause.WIDE, Cause.UNCLEAR}
    return case.run.first_bad_loss is not None or any(
        cause_of(one) in shown and one.vanished is None for one in faults(case)
    )


def is_blameless(case: Case) -> bool:
    """Whether a forward pass that is lost, or an infinite slope, explains the skipped steps at any scale."""
    return forward_is_lost(case) or any(cause_of(one) is Cause.BACKWARD and is_pole(one) for one in faults(case))


def course(case: Case) -> str:
    """How the scale went and how many steps were skipped: the figures of every finding on it."""
    steps = scaled_steps(case)
    skipped = [step.index for step in steps if step.skipped]
    return (
        f"the scale went from {steps[0].scale:g} to {steps[-1].scale:g} in {len(steps)} steps, of which "
        f"{len(skipped)} were skipped, {case.run.longest_skips} in a row"
    )

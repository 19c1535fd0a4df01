"""Runs the variants of a script in turns, each in a process of its own, and puts what they measured together."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ampwise._base.errors import CannotRunError
from ampwise.compare.schedule import ComparisonPlan, ScheduledRun, schedule
from ampwise.compare.summary import summarise
from ampwise.records.comparison import Comparison
from ampwise.records.environment import Environment
from ampwise.records.recording import Recording
from ampwise.records.run import OWN_REFUSAL, RunEnd, RunRecord
from ampwise.runner.bootstrap import own_environment
from ampwise.runner.changes import ChangeWatch
from ampwise.runner.child import Runner, run_child
from ampwise.runner.environment import describe_environment
from ampwise.runner.script import Target
from ampwise.runner.summary import NO_STEP_FOUND

EXTRA_NOTE = "a run with another seed, made only to measure fp32's own noise; no figure of the table is from it"

REFERENCE_NOTE = "a run made only for the outputs that the others' are held against; it is in no row of the table"
TRY_EVAL = "a script that only evaluates is compared with: ampwise compare --eval"
NO_FORWARD_FOUND = (
    "no forward pass found: --eval looks for calls of a model with parameters under torch.no_grad() or "
    "torch.inference_mode(), in the script and in the Python processes it started"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a comparison is."""

    variant: str
    """What runs now."""
    run: int
    """Which run it is, from 1."""
    num_runs: int
    num_done: int
    """Steps over all runs."""
    num_total: int


class ComparisonInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a comparison; what had finished by then is in ``recording``."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording


def compare(
    target: Target,
    plan: ComparisonPlan,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    run: Runner = run_child,
    describe: Callable[[ComparisonPlan], Environment] | None = None,
) -> Recording:
    """What each variant of ``target`` gained over the first.

    Every run has a process of its own, the seeds of its number, and the plan's allocator. A variant whose run fails
    is not run again; the others are.

    Args:
        target: The script.
        plan: What is compared, and how long.
        on_progress: Told of every step.
        run: Makes one run.
        describe: Says where the runs took place, once they have.

    Raises:
        CannotRunError: the script makes no training step.
        ComparisonInterrupted: Ctrl-C came after a run had finished.
    """
    describe = describe or _describe
    done: list[tuple[ScheduledRun, RunRecord]] = []
    changes = ChangeWatch(str(Path.cwd()), scratch=plan.saved) if plan.saved is not None else None

    def recording() -> Recording:
        return _recording(target, plan, done, describe(plan), notes=changes.notes() if changes else ())

    try:
        _run_all(target, plan, done, run=run, on_progress=on_progress or _ignore)
    except KeyboardInterrupt:
        if not any(record.has_finished for _, record in done):
            raise
        raise ComparisonInterrupted(recording()) from None
    return recording()


def _run_all(
    target: Target,
    plan: ComparisonPlan,
    done: list[tuple[ScheduledRun, RunRecord]],
    *,
    run: Runner,
    on_progress: Callable[[Progress], None],
) -> None:
    runs = schedule(plan)
    failed: set[str] = set()
    for index, scheduled in enumerate(runs):
        name = scheduled.variant.name
        progress = Progress(
            variant=name,
            run=index + 1,
            num_runs=len(runs),
            num_done=index * plan.num_steps,
            num_total=len(runs) * plan.num_steps,
        )
        on_progress(progress)
        if name in failed:
            continue
        output = str(Path(plan.scratch, "output", f"{name}-{scheduled.repeat}")) if plan.scratch is not None else None
        try:
            record = run(target, scheduled.spec(plan), on_step=_teller(progress, plan, on_progress), output=output)
        except KeyboardInterrupt:
            _forget(output)  # no row will name it
            raise
        refusal = record.failure if record.failure is not None and record.failure.kind == OWN_REFUSAL else None
        if index == 0 and plan.evaluates and refusal is not None:
            raise CannotRunError(refusal.message)
        if index == 0 and record.end is RunEnd.NO_STEPS:
            raise CannotRunError(NO_FORWARD_FOUND if plan.evaluates else f"{NO_STEP_FOUND}; {TRY_EVAL}")
        if not record.has_finished:
            failed.add(name)
        done.append((scheduled, _named(record, scheduled, output)))


def _named(record: RunRecord, scheduled: ScheduledRun, output: str | None) -> RunRecord:
    """The record under the user's own name for the variant; what a run printed is kept only where it failed."""
    notes = list(record.notes)
    if scheduled.is_extra:
        notes.append(EXTRA_NOTE if record.outputs is None else REFERENCE_NOTE)
    if record.has_finished:
        _forget(output)
    elif output is not None:
        notes.append(f"what it printed is kept in {output}")
    return replace(record, variant=scheduled.variant.name, repeat=scheduled.repeat, notes=tuple(notes))


def _forget(output: str | None) -> None:
    if output is not None:
        shutil.rmtree(output, ignore_errors=True)


def _teller(progress: Progress, plan: ComparisonPlan, on_progress: Callable[[Progress], None]) -> Callable[[int], None]:
    """Adds a run's own steps to those before it."""

    def tell(num_steps: int) -> None:
        on_progress(replace(progress, num_done=progress.num_done + min(num_steps, plan.num_steps)))

    return tell


def _recording(
    target: Target,
    plan: ComparisonPlan,
    done: Sequence[tuple[ScheduledRun, RunRecord]],
    environment: Environment,
    *,
    notes: tuple[str, ...],
) -> Recording:
    fp32 = [record for scheduled, record in done if scheduled.variant.is_fp32]
    by_name = {
        variant.name: [record for scheduled, record in done if scheduled.variant == variant and not scheduled.is_extra]
        for variant in plan.variants
    }
    first = by_name[plan.variants[0].name]
    return Recording(
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=target.command,
        environment=environment,
        runs=tuple(record for _, record in done),
        notes=notes,
        comparison=Comparison(
            variants=tuple(
                summarise(variant, by_name[variant.name], fp32=fp32, first=first, project_steps=plan.project_steps)
                for variant in plan.variants
            ),
            num_steps=plan.num_steps,
            num_repeats=plan.num_repeats,
            project_steps=plan.project_steps,
            evaluates=plan.evaluates,
        ),
    )


def _describe(plan: ComparisonPlan) -> Environment:
    return describe_environment(device=plan.device, malloc=plan.malloc, environ=own_environment())


def _ignore(progress: Progress) -> None:
    """Tell nobody."""

"""Runs a script as often as it takes to answer what is wrong with it, and puts what was recorded together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from ampwise._base.errors import CannotRunError
from ampwise.examine.passes import Pass, follow_ups, rescue, still_fails, watched
from ampwise.records.environment import Environment
from ampwise.records.recording import Recording
from ampwise.records.run import OWN_REFUSAL, Role, RunEnd, RunRecord
from ampwise.runner.bootstrap import own_environment
from ampwise.runner.changes import ChangeWatch
from ampwise.runner.child import Runner, run_child
from ampwise.runner.environment import describe_environment
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec
from ampwise.runner.summary import NO_STEP_FOUND

_MAX_RESCUES: Final = 4
"""Modules that fail one behind the other: more than so many are found by a search, not by an examination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an examination is."""

    role: Role
    """Why the run is made that runs now."""
    num_done: int
    """Its steps."""
    num_steps: int | None
    """Those it is to make; None where it runs to its own end."""


def examine(
    target: Target,
    spec: LaunchSpec,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    run: Runner = run_child,
    describe: Callable[[LaunchSpec], Environment] | None = None,
) -> Recording:
    """What instruments saw of ``target``, in as many runs as its faults take.

    Every run has a process of its own and the same seeds. Nothing is judged: that is doctor's.

    Args:
        target: The script.
        spec: The precision, the device, the allocator, how many steps, and where what the script saves goes.
        on_progress: Told of every step.
        run: Makes one run.
        describe: Says where the runs took place, once they have.

    Raises:
        CannotRunError: the script makes no training step, and says not why; or ampwise cannot do what was asked.
    """
    tell = on_progress or _ignore
    changes = ChangeWatch(str(Path.cwd()), scratch=spec.scratch) if spec.scratch is not None else None
    runs = [_made(target, watched(spec), tell, run)]
    _refuse(runs[0])
    runs += [_made(target, one, tell, run) for one in follow_ups(runs[0], spec)]
    traced = next((one for one in runs if one.role is Role.TRACED), None)
    if traced is not None:
        in_fp32 = next((one for one in runs if one.role is Role.IN_FP32), None)
        runs += _rescues(target, runs[0], traced, spec, in_fp32=in_fp32, tell=tell, run=run)
    return Recording(
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=target.command,
        environment=(describe or _describe)(spec),
        runs=tuple(runs),
        notes=changes.notes() if changes is not None else (),
    )


def _rescues(
    target: Target,
    first: RunRecord,
    traced: RunRecord,
    spec: LaunchSpec,
    *,
    in_fp32: RunRecord | None,
    tell: Callable[[Progress], None],
    run: Runner,
) -> Iterator[RunRecord]:
    """Runs with the suspects in fp32: where the next module then fails, it becomes one too."""
    seen, kept = traced, ()
    for _ in range(_MAX_RESCUES):
        one = rescue(seen, spec, kept=kept, in_fp32=in_fp32)
        if one is None:
            return
        seen, kept = _made(target, one, tell, run), one.fp32_modules
        yield seen
        if not still_fails(seen, first):
            return


def _refuse(record: RunRecord) -> None:
    """A run that says nothing of the script's training is not diagnosed."""
    if record.end is RunEnd.NO_STEPS:
        raise CannotRunError(NO_STEP_FOUND)
    if record.failure is not None and record.failure.kind == OWN_REFUSAL:
        raise CannotRunError(record.failure.message)


def _made(target: Target, one: Pass, tell: Callable[[Progress], None], run: Runner) -> RunRecord:
    output = str(Path(one.spec.scratch, "output", one.role.value)) if one.spec.scratch is not None else None

    def on_step(num_steps: int) -> None:
        tell(Progress(role=one.role, num_done=num_steps, num_steps=one.spec.stop_after))

    on_step(0)
    record = run(target, one.spec, on_step=on_step, output=output)
    return replace(record, role=one.role, fp32_modules=one.fp32_modules)


def _describe(spec: LaunchSpec) -> Environment:
    return describe_environment(device=spec.device, malloc=spec.malloc, environ=own_environment())


def _ignore(progress: Progress) -> None:
    """Tell nobody."""

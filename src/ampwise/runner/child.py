"""Runs a script in a process of its own and brings its record home, however it ends."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ampwise.records.files import load
from ampwise.records.run import UNTOLD, Failure, RunEnd, RunRecord
from ampwise.runner.bootstrap import own_environment, plain_environment
from ampwise.runner.changes import tracker_environment
from ampwise.runner.malloc import children_environment
from ampwise.runner.process import last_lines, running
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec
from ampwise.runner.worker import order_to_json

_POLL_S = 0.05


class Runner(Protocol):
    """Runs a script in a process of its own; never raises for the script's faults."""

    def __call__(
        self, target: Target, spec: LaunchSpec, *, on_step: Callable[[int], None], output: str | None
    ) -> RunRecord:
        """Run ``target`` as ``spec`` says, keep what it prints in the folder ``output``, and return its record."""
        ...


def run_child(
    target: Target,
    spec: LaunchSpec,
    *,
    on_step: Callable[[int], None] | None = None,
    cwd: str | None = None,
    output: str | None = None,
    environ: Mapping[str, str] | None = None,
    give_up: Callable[[], bool] | None = None,
) -> RunRecord:
    """Run ``target`` as ``spec`` says, alone in a process, and return its record.

    A fault of the script's (an exception, a signal, out of memory) is told by the record. Whatever ends this call,
    KeyboardInterrupt included, no process of the run outlives it. The script reads nothing from the terminal and
    prints nothing to it.

    Args:
        target: the script.
        spec: what to do; ``record``, ``progress`` and ``parts`` are set here, and each run gets a folder of its own
            below ``scratch``.
        on_step: is told the number of steps made so far, a few times a second.
        cwd: the script's folder; by default this process's.
        output: folder where the files ``stdout`` and ``stderr`` keep what the script printed; by default they go.
        environ: set beside this process's environment.
        give_up: asked a few times a second whether to end the run.

    Raises:
        RecordError: the process left a record that is not this ampwise's; the script has no part in that.
    """
    with tempfile.TemporaryDirectory(prefix="ampwise-") as folder:
        full = _complete(spec, Path(folder))
        kept = Path(folder if output is None else output)
        command = [sys.executable, "-m", "ampwise.runner.worker", order_to_json(target, full)]
        made = {**_environment(full, own_environment()), **(environ or {})}
        with running(command, env=made, cwd=cwd, output=kept) as process:
            _follow(process, Path(str(full.progress)), on_step, give_up)
        return _record(full, process.returncode, stderr=last_lines(kept))


def _complete(spec: LaunchSpec, folder: Path) -> LaunchSpec:
    Path(folder, "parts").mkdir()
    scratch = None
    if spec.scratch is not None:
        Path(spec.scratch).mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=f"{spec.precision}-{spec.repeat}-", dir=spec.scratch)
    return replace(
        spec,
        record=str(folder / "record.json"),
        progress=str(folder / "progress"),
        parts=str(folder / "parts"),
        scratch=scratch,
        summary=False,
    )


def _environment(spec: LaunchSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The child's own start is plain; equal runs need equal hashes; trackers stay offline."""
    made = {"PYTHONHASHSEED": str(spec.repeat), **plain_environment(environ)}
    if spec.scratch is not None:
        made.update(tracker_environment(spec.scratch))
    return {**made, **children_environment(spec.malloc, environ=environ)}


def _follow(
    process: "subprocess.Popen[bytes]",
    progress: Path,
    on_step: Callable[[int], None] | None,
    give_up: Callable[[], bool] | None,
) -> None:
    """Wait for the process's end, or until it is given up; tell of its steps meanwhile."""
    told = 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S if on_step is not None or give_up is not None else None)
        if on_step is not None and told != (told := _num_steps(progress, told)):
            on_step(told)
        if process.returncode is not None or (give_up is not None and give_up()):
            return


def _num_steps(progress: Path, before: int) -> int:
    """The last whole line's number."""
    try:
        with progress.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 64))
            lines = file.read().split(b"\n")
    except OSError:
        return before
    return int(lines[-2]) if len(lines) > 1 and lines[-2].isdigit() else before


def _record(spec: LaunchSpec, status: int, *, stderr: str) -> RunRecord:
    """What the process recorded, or what its end says where it recorded nothing."""
    if not Path(str(spec.record)).exists():
        return _lost(spec, status, stderr=stderr)
    record = load(str(spec.record), RunRecord)
    if record.failure is not None and not record.failure.message:
        return replace(record, failure=replace(record.failure, message=stderr))
    return record


def _lost(spec: LaunchSpec, status: int, *, stderr: str) -> RunRecord:
    killed = status < 0
    kind = f"signal {-status}" if killed else f"exit status {status}"
    return RunRecord(
        variant=spec.variant,
        precision=spec.precision,
        reason=UNTOLD,
        repeat=spec.repeat,
        end=RunEnd.KILLED if killed else RunEnd.FAILED,
        failure=Failure(kind=kind, message=stderr),
    )

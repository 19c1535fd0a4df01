"""Starts a process in a group of its own, and leaves nothing of the group running, whatever happens."""

import os
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from ampwise._base.text import inert

_GRACE_S: Final = 3.0
_TAIL_BYTES: Final = 8_192
_TAIL_LINES: Final = 12
_OF_THE_PROFILER: Final = "USDT:"
"""Begins the lines that torch's profiler prints around the steps that ampwise has it look at."""


@contextmanager
def running(
    command: Sequence[str], *, env: Mapping[str, str], cwd: str | None, output: Path, pass_fds: Sequence[int] = ()
) -> "Generator[subprocess.Popen[bytes]]":
    """Run ``command`` within the block, and end it and all that it started when the block is left.

    It reads nothing from the terminal and prints nothing to it.

    Args:
        command: The program and its arguments.
        env: Its whole environment.
        cwd: Its folder; by default this process's.
        output: The folder whose files ``stdout`` and ``stderr`` keep what it prints.
        pass_fds: Open files of this process that are open in it too.
    """
    output.mkdir(parents=True, exist_ok=True)
    with Path(output, "stdout").open("wb") as stdout, Path(output, "stderr").open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 - our own command
            list(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            process_group=0,
            pass_fds=pass_fds,
        )
    try:
        yield process
    finally:
        _end_group(process)


def last_lines(output: Path) -> str:
    """The last lines that the process printed to stderr, without torch's profiler's."""
    with Path(output, "stderr").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = [line for line in inert(text).strip().splitlines() if not line.startswith(_OF_THE_PROFILER)]
    return "\n".join(lines[-_TAIL_LINES:])


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End the process, and what it started and left running."""
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)

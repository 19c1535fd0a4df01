"""Runs a launcher (torchrun, accelerate, python) whose Python processes take a launch spec over."""

import shutil
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ampwise._base.errors import UsageError
from ampwise._base.text import inert_line

_FORWARDED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_POLL_S = 0.5


def run_command(command: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Run ``command`` and give its exit status, 128 + n where signal n ended it.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT sent to this process reach the command once: what comes from the terminal
    reached both already.

    Raises:
        UsageError: there is no such command.
    """
    executable = shutil.which(command[0], path=environ.get("PATH"))
    if executable is None:
        raise UsageError(
            f'there is no command "{inert_line(command[0])}"; after -- stands a launcher, as in: '
            "ampwise run -- torchrun --nproc-per-node 2 train.py"
        )
    with subprocess.Popen([executable, *command[1:]], env=dict(environ)) as process:  # noqa: S603 - what the user asked for
        forward = _forward_waited if hasattr(signal, "sigtimedwait") else _forward_handled
        status = forward(process)
    return status if status >= 0 else 128 - status


def _forward_waited(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the end and for signals alike: their sender is known, so none is delivered twice."""
    watched = _FORWARDED | {signal.SIGCHLD}
    with _blocked(watched):
        while process.poll() is None:
            received = signal.sigtimedwait(watched, _POLL_S)
            if received is not None and received.si_signo in _FORWARDED and received.si_code <= 0:
                process.send_signal(received.si_signo)
        while signal.sigtimedwait(watched, 0) is not None:
            pass  # what came for the command while it ended is not this process's own
    return process.returncode


@contextmanager
def _blocked(signals: frozenset[signal.Signals]) -> Generator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forward_handled(process: "subprocess.Popen[bytes]") -> int:
    """Where senders cannot be told apart: SIGINT is taken to come from the terminal, the rest from elsewhere."""

    def forward(number: int, _frame: Any) -> None:
        process.send_signal(number)

    handlers = {number: signal.SIG_IGN if number == signal.SIGINT else forward for number in _FORWARDED}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

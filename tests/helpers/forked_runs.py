"""Runs of a script in copies of this process, in place of fresh ones: importing torch is most of what those take."""

import os
import signal
import tempfile
from pathlib import Path

from ampwise.runner import child, worker

_TIMEOUT_S = 200


def run_forked(target, spec, *, on_step, output):
    """A ``Runner`` that forks; what the script prints goes."""
    with tempfile.TemporaryDirectory(prefix="ampwise-") as folder:
        full = child._complete(spec, Path(folder))
        pid = os.fork()
        if pid == 0:
            signal.alarm(_TIMEOUT_S)
            _become(target, full)
        _, status = os.waitpid(pid, 0)
        on_step(full.stop_after)
        assert output is None or output
        return child._record(full, os.waitstatus_to_exitcode(status), stderr="")


def _become(target, spec):
    status = 70
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        status = worker.main(worker.order_to_json(target, spec))
    finally:
        os._exit(status)

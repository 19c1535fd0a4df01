"""Runs cases in several processes that train together: one start for many cases, for a start takes seconds.

As a script (``python ranks.py MODULE WORLD FOLDER SECONDS CASE...``) it imports the module once and forks into the
ranks, which end after so many seconds.
Each rank calls the module's functions of those names one after the other and leaves what they returned as JSON.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

TIMEOUT_S = 240
"""Then the ranks are ended, and the test fails."""
_WAIT = timedelta(seconds=60)
"""As long as one rank waits for another."""


def run_cases(module, names, *, world, folder, environ=None, timeout_s=TIMEOUT_S):
    """What each case returned on each rank: ``{case: [of rank 0, of rank 1, ...]}``."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    command = [sys.executable, __file__, str(module), str(world), str(folder), str(timeout_s), *names]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **(environ or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output, process_group=0)
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        status = f"not at its end after {timeout_s} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert status == 0, f"{status}: {log.read_text()[-5000:]}"
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    return {name: [one[name] for one in found] for name in names}


def _launch(module, world, folder, timeout_s, *names):
    import torch

    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("cases", module)
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    ranks = []
    for rank in range(int(world)):
        process = os.fork()
        if process == 0:
            signal.alarm(int(timeout_s))
            os._exit(_rank(cases, rank, int(world), folder, names))
        ranks.append(process)
    return max(os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in ranks)


def _rank(cases, rank, world, folder, names):
    import torch
    import torch.distributed as dist

    try:
        store = dist.FileStore(str(Path(folder, "store")), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=_WAIT)
        results = {}
        for name in names:
            torch.manual_seed(0)
            results[name] = getattr(cases, name)()
            dist.barrier()
        Path(folder, f"{rank}.json").write_text(json.dumps(results))
    except BaseException:  # noqa: BLE001 - whatever it is, the rank must not wait for others
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_launch(*sys.argv[1:]))

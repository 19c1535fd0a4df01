"""The main module of a measured run's process: ``python -m ampwise.runner.worker ORDER``."""

import ctypes
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from ampwise._base.errors import AmpwiseError
from ampwise.records.files import save
from ampwise.runner.bootstrap import announce, own_environment, spec_from_json, spec_to_json
from ampwise.runner.script import ScriptEnd, Target, run_target
from ampwise.runner.session import session
from ampwise.runner.spec import LaunchSpec

_PR_SET_PDEATHSIG = 1


def order_to_json(target: Target, spec: LaunchSpec) -> str:
    """What the process is to do, as its one argument."""
    return json.dumps({"target": asdict(target), "spec": spec_to_json(spec)})


def _order_from_json(text: str) -> tuple[Target, LaunchSpec]:
    order: dict[str, Any] = json.loads(text)
    fields: dict[str, Any] = order["target"]
    fields["argv"] = tuple(fields["argv"])
    return Target(**fields), spec_from_json(order["spec"])


def main(text: str) -> int:
    """Run the script, write its record to ``spec.record``, and give the script's status."""
    target, spec = _order_from_json(text)
    _die_with_parent()
    announce(spec)
    own_process = os.getpid()
    with session(spec, command=target.command, environ=own_environment()) as current:
        end = _run(target)
    if os.getpid() != own_process:  # the script forked, and this copy of it has ended
        current.leave_report()
    elif spec.record is not None:
        save(current.record(end), spec.record)
    return end.status


def _run(target: Target) -> ScriptEnd:
    try:
        return run_target(target)
    except AmpwiseError as error:
        sys.stderr.write(f"ampwise: {error}\n")
        return ScriptEnd(status=error.exit_status, error=error)


def _die_with_parent() -> None:
    """Ask Linux to end this process when the one that started it ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

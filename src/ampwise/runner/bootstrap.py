"""Reaches the Python processes that a script starts: what they need in their environment, and what they do with it."""

import atexit
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ampwise.runner.spec import Amp, LaunchSpec, Lists, Malloc

VARIABLE = "AMPWISE_LAUNCH"
"""Holds the launch spec as JSON."""
_SITE = str(Path(__file__).parent / "_site")
"""Holds the sitecustomize that calls ``start``."""
_NOT_THE_SCRIPTS = ("multiprocessing.resource_tracker", "torch/_inductor", "torch._inductor", "ampwise.runner.worker")


def spec_to_json(spec: LaunchSpec) -> str:
    """The spec as one line."""
    return json.dumps(asdict(spec))


def spec_from_json(text: str) -> LaunchSpec:
    """The spec that ``spec_to_json`` wrote."""
    fields: dict[str, Any] = json.loads(text)
    fields.update(lists=Lists(fields["lists"]), malloc=Malloc(fields["malloc"]), amp=Amp(fields["amp"]))
    fields["instruments"] = tuple(fields["instruments"])
    return LaunchSpec(**fields)


def children_environment(spec: LaunchSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment under which Python processes take ``spec`` over; only their first process prints."""
    path = [_SITE, *_without_site(environ.get("PYTHONPATH", ""))]
    return {**environ, VARIABLE: spec_to_json(replace(spec, summary=False)), "PYTHONPATH": os.pathsep.join(path)}


def plain_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment under which Python processes run as if there were no ampwise."""
    kept = {name: value for name, value in environ.items() if name not in {VARIABLE, "PYTHONPATH"}}
    path = _without_site(environ.get("PYTHONPATH", ""))
    return {**kept, "PYTHONPATH": os.pathsep.join(path)} if path else kept


def own_environment() -> Mapping[str, str]:
    """This process's environment."""
    return os.environ


def announce(spec: LaunchSpec) -> None:
    """Let the processes that this one starts from now on take ``spec`` over."""
    os.environ.update(children_environment(spec, os.environ))


def start() -> None:
    """Take the environment's spec over, in a Python process that a script started. Called by sitecustomize."""
    text = os.environ.get(VARIABLE)
    if not text or _is_ours(sys.orig_argv):
        return
    from ampwise.runner.session import Session

    current = Session(spec_from_json(text), command=(), environ=os.environ, is_child=True)
    current.open()

    def leave() -> None:
        current.leave_report()
        current.close()

    atexit.register(leave)


def _is_ours(arguments: Sequence[str]) -> bool:
    """Whether the process is ampwise's own command or a helper of Python's or torch's, which trains nothing."""
    if any(word in argument for argument in arguments[1:] for word in _NOT_THE_SCRIPTS):
        return True
    names = arguments[1:]
    while names and names[0].startswith("-") and names[0] not in {"-m", "-c"}:
        names = names[1:]
    if names[:1] == ["-m"]:
        return names[1:2] == ["ampwise"]
    return bool(names) and Path(names[0]).name in {"ampwise", "ampwise.exe"}


def _without_site(path: str) -> list[str]:
    return [folder for folder in path.split(os.pathsep) if folder and folder != _SITE]

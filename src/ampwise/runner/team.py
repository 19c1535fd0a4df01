"""The processes that torchrun started together, each with ampwise in it: one leads, the others do as it says."""

import json
import math
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from ampwise.records.files import from_json, to_json
from ampwise.records.ranks import merged
from ampwise.records.run import RunEnd, RunRecord
from ampwise.runner.bootstrap import spec_from_json, spec_to_json
from ampwise.runner.child import run_child
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec
from ampwise.runner.store import AGENT_STORE, POLL_S, Team
from ampwise.runner.summary import ProcessReport

_GRACE_S: Final = 15.0
"""How long a rank may go on after another failed: it mostly ends by itself, and says so better than a signal."""
_LAST_STEP_S: Final = 90.0
"""The same after another was stopped after the steps asked for, which this one may still have to reach."""
_REPORTS_S: Final = 20.0
"""How long the leader waits for what the others did when its own script has ended, all of them together."""
_SILENCE_S: Final = _GRACE_S + _REPORTS_S
"""How long the leader waits for a rank of which nothing is heard; one that says it is at work is waited for."""
_PULSE_S: Final = 5.0


class Lead:
    """Makes a run on all ranks: what ``run_child`` does on one. The records come back as one.

    Args:
        team: of which this rank is the first.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._num_runs = 0

    def __call__(
        self, target: Target, spec: LaunchSpec, *, on_step: Callable[[int], None], output: str | None
    ) -> RunRecord:
        """Run ``target`` on every rank."""
        self._num_runs += 1
        port = _free_port()
        self._team.put(_order(self._num_runs), json.dumps({"spec": spec_to_json(spec), "output": output, "port": port}))
        run = partial(run_child, target, output=output, on_step=on_step)
        records = [(0, _run(self._team, self._num_runs, spec, port, run))]
        silent: list[int] = []
        for rank in range(1, self._team.size):
            pulse = _pulse(self._num_runs, rank)
            text = self._team.wait_for(_record(self._num_runs, rank), seconds=_SILENCE_S, pulse=pulse)
            if text is None:
                silent.append(rank)
            else:
                records.append((rank, from_json(text, RunRecord)))
        return _with_silent(merged(records), silent)

    def dismiss(self) -> None:
        """Let the others go; there is no further run."""
        with suppress(Exception):  # torchrun may have taken the store away
            self._team.put("done", "1")


def follow(team: Team, target: Target) -> int:
    """Make each run that the leader orders, until there is none; returns this process's status."""
    num_runs = 1
    while True:
        order = team.get(_order(num_runs))
        if order is None:
            if team.get("done") is not None:
                return 0
            time.sleep(POLL_S)
            continue
        words = json.loads(order)
        output = None if words["output"] is None else f"{words['output']}-rank{team.rank}"
        run = partial(run_child, target, output=output)
        record = _with_output(_run(team, num_runs, spec_from_json(words["spec"]), words["port"], run), output)
        team.put(_record(num_runs, team.rank), to_json(record))
        num_runs += 1


def put_report(team: Team, report: ProcessReport) -> None:
    """Leave the first rank what this one did."""
    team.put(f"report/{team.rank}", to_json(replace(report, rank=team.rank)))


def gather_reports(team: Team) -> list[ProcessReport]:
    """What the other ranks did, of those that say so in time."""
    end = time.monotonic() + _REPORTS_S
    texts = [team.wait_for(f"report/{rank}", seconds=end - time.monotonic()) for rank in range(1, team.size)]
    return [from_json(text, ProcessReport) for text in texts if text is not None]


def _order(num_run: int) -> str:
    return f"order/{num_run}"


def _record(num_run: int, rank: int) -> str:
    return f"record/{num_run}/{rank}"


def _pulse(num_run: int, rank: int) -> str:
    return f"pulse/{num_run}/{rank}"


def _with_output(record: RunRecord, output: str | None) -> RunRecord:
    """The record with a word about what its run printed, which is kept only where it failed."""
    if output is None:
        return record
    if record.has_finished:
        shutil.rmtree(output, ignore_errors=True)
        return record
    return replace(record, notes=(*record.notes, f"what it printed is kept in {output}"))


def _with_silent(record: RunRecord, ranks: Sequence[int]) -> RunRecord:
    """The record with a word about ranks of which nothing came."""
    if not ranks:
        return record
    which = ", ".join(map(str, ranks))
    return replace(record, notes=(*record.notes, f"nothing came of rank {which}: their part is missing here"))


def _run(team: Team, num_run: int, spec: LaunchSpec, port: int, run: Callable[..., RunRecord]) -> RunRecord:
    """One rank's part; it ends the run where another rank's has failed.

    Every run has a rendezvous of its own: in torchrun's store the next one would find what the last one left.
    """
    failed, stopped = f"failed/{num_run}", f"stopped/{num_run}"
    graces = {failed: _GRACE_S, stopped: _LAST_STEP_S}
    patience = _Patience(team.get, graces, pulse=partial(team.put, _pulse(num_run, team.rank)))
    record = run(
        replace(spec, store=f"{team.address}/run/{num_run}"),
        environ={"MASTER_PORT": str(port), AGENT_STORE: "False"},
        give_up=patience.is_over,
    )
    if record.end is RunEnd.STOPPED:
        team.put(stopped, str(team.rank))
    elif record.failure is not None:
        team.put(failed, str(team.rank))
    return record


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


class _Patience:
    """Ends some time after a word has come; says meanwhile that it goes on.

    Args:
        get: gives the word under a key.
        graces: how many seconds to go on after each word.
        pulse: where this rank says that it is at work.
    """

    def __init__(
        self, get: Callable[[str], str | None], graces: Mapping[str, float], *, pulse: Callable[[str], None]
    ) -> None:
        self._get, self._graces, self._pulse = get, dict(graces), pulse
        self._end = math.inf
        self._next_look = self._next_pulse = 0.0

    def is_over(self) -> bool:
        now = time.monotonic()
        if now >= self._next_pulse:
            self._next_pulse = now + _PULSE_S
            self._pulse(str(now))
        if now >= self._next_look:
            self._next_look = now + POLL_S * 5
            for key in [key for key in self._graces if self._get(key) is not None]:
                self._end = min(self._end, now + self._graces.pop(key))
        return now >= self._end

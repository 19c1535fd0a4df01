"""``ampwise run``: a training script, unmodified, in mixed precision."""

import atexit
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ampwise._base.errors import AmpwiseError, CannotRunError, UsageError
from ampwise._base.text import inert_line
from ampwise.cli.completion import complete_plans, complete_precisions
from ampwise.cli.exits import INTERRUPTED, has_syntax_error, say
from ampwise.cli.misplaced import hint_after_refusal, script_behind, warn_of_misplaced
from ampwise.cli.options import (
    lists_option,
    malloc_option,
    module_option,
    nvtx_option,
    script_words,
    target_of,
)
from ampwise.emulate.recipes import get_recipe
from ampwise.records.files import to_plain
from ampwise.records.lost_peer import LOST_PEER, has_lost_peer
from ampwise.runner.bootstrap import announce, children_environment, own_environment
from ampwise.runner.failures import describe, missing_cuda, own_place
from ampwise.runner.launch import run_command
from ampwise.runner.planned import as_asked
from ampwise.runner.script import ScriptEnd, Target, run_target, show_error, source_of
from ampwise.runner.session import Session, session
from ampwise.runner.spec import LaunchSpec, Lists, Malloc
from ampwise.runner.store import team_of
from ampwise.runner.summary import NO_STEP_FOUND, RunSummary, summary_lines, together
from ampwise.runner.team import gather_reports, put_report

_DEVICE = re.compile(r"(cpu|mps|cuda(:\d+)?|xpu(:\d+)?)")


class _ScriptCommand(click.Command):
    """A command that remembers whether ``--`` stood before its first word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        place = len(given) - len(ctx.params.get("words") or ()) - 1  # None while a shell completes
        ctx.params["has_dashes"] = place >= 0 and given[place] == "--"
        return rest


class _Leaving:
    """What this process does last of all, after the script's own atexit handlers: registered before them."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.is_interrupted = False
        self.parts = tempfile.mkdtemp(prefix="ampwise-")
        atexit.register(self._leave)

    @property
    def is_fork(self) -> bool:
        """Whether the script forked, and this is the copy."""
        return os.getpid() != self._process

    def _leave(self) -> None:
        if self.is_fork:
            return
        shutil.rmtree(self.parts, ignore_errors=True)
        if self.is_interrupted:  # python ends by the signal itself, so that a shell's loop ends too
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)


class _Voice:
    """How the run's result is told: lines on stderr, or one JSON document on stdout with the script's stdout moved."""

    def __init__(self, *, as_json: bool, summary: bool) -> None:
        self._summary = summary
        self._stdout: int | None = None
        if as_json:
            sys.stdout.flush()
            self._stdout = os.dup(1)
            os.dup2(2, 1)

    def tell(self, summary: RunSummary, *, status: int, failure: str | None) -> None:
        """Tell what the run did and how it ended."""
        if self._stdout is not None:
            sys.stdout.flush()
            document = {"status": status, "error": failure, **to_plain(summary)}
            os.write(self._stdout, (json.dumps(document, indent=1) + "\n").encode())
        elif failure is not None:
            if self._summary and summary.num_steps:
                say(f"{summary.label}, {summary.num_steps} steps; {failure}")
        elif self._summary:
            for line in summary_lines(summary):
                say(line)


@click.command(
    name="run",
    cls=_ScriptCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Run a training script, unmodified, in mixed precision.",
)
@click.option(
    "--precision",
    shell_complete=complete_precisions,
    metavar="NAME",
    help="auto (default), fp32, tf32, bf16, fp16, or a preset of `plan list`.",
)
@click.option(
    "--plan",
    shell_complete=complete_plans,
    metavar="PLAN",
    help="What runs in which format: a plan file, a preset (`ampwise plan list`).",
)
@click.option(
    "--emulate",
    metavar="FORMAT",
    help="Compute on this CPU as if it had the format's hardware: tf32, bf16, fp16, fp8_e4m3 or fp8_e5m2.",
)
@module_option
@click.option("--device", metavar="DEVICE", help="cpu, cuda:1, ...: the current device of the run.")
@lists_option
@malloc_option("CPU allocator: keep large tensors between steps (tuned), as it is (system), or auto.")
@nvtx_option
@click.option("--show-code", is_flag=True, help="Print the plain torch.amp code that would do the same; run nothing.")
@click.option("--summary/--no-summary", default=True, help="Print the closing summary to stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; the script's stdout goes to stderr.")
@script_words
def command(words: tuple[str, ...], **options: Any) -> int:
    """Run a training script, unmodified, in the precision this hardware is good at.

    \b
    ampwise run train.py --lr 3e-4
    ampwise run --precision bf16 -m package.train
    ampwise run --plan plan.toml train.py
    ampwise run -- torchrun --nproc-per-node 2 train.py

    Options of ampwise stand before SCRIPT; all after it is the script's. The
    exit status is the script's.
    """  # noqa: D301 - click's mark for a block kept as it is
    spec = _spec(options)
    is_launcher = options["has_dashes"] and not options["is_module"] and _is_launcher(words[0])
    if not is_launcher and not options["is_module"]:
        _refuse_command(words[0])
    target = target_of(words, is_module=options["is_module"])
    started = script_behind(words) if is_launcher else target
    is_warned = spec.summary and started is not None and warn_of_misplaced(started, command)
    if options["show_code"]:
        if is_launcher:
            raise UsageError(f"--show-code shows a script; name it in place of {inert_line(words[0])}")
        return _show_code(target, spec)
    leaving = _Leaving()
    spec = replace(spec, parts=leaving.parts)
    voice = _Voice(as_json=options["as_json"], summary=spec.summary)
    return _launch(words, spec, voice) if is_launcher else _run(target, spec, voice, leaving, is_warned=is_warned)


def _spec(options: Mapping[str, Any]) -> LaunchSpec:
    spec = as_asked(_plain_spec(options), plan=options["plan"], precision=options["precision"])
    if spec.plan is not None and options["show_code"]:
        given = "--precision" if options["plan"] is None else "--plan"
        raise UsageError(f"--show-code shows plain torch, which has no plans; leave out one of it and {given}")
    return spec


def _plain_spec(options: Mapping[str, Any]) -> LaunchSpec:
    device = options["device"]
    emulate = get_recipe(options["emulate"]).name if options["emulate"] is not None else None
    if emulate is not None and options["show_code"]:
        raise UsageError("--show-code shows plain torch, which cannot emulate; leave out one of it and --emulate")
    if device is not None and _DEVICE.fullmatch(device) is None:
        raise UsageError(f'"{inert_line(device)}" is not a device; write cpu, cuda, cuda:1, mps or xpu')
    return LaunchSpec(
        precision=emulate or "auto",
        emulate=emulate,
        lists=Lists(options["lists"]),
        malloc=Malloc(options["malloc"]),
        device=device,
        nvtx=options["nvtx"],
        summary=options["summary"] and own_environment().get("RANK", "0") == "0",
    )


def _refuse_command(word: str) -> None:
    """Say what to write where a launcher stands in the script's place."""
    if not Path(word).exists() and shutil.which(word) is not None:
        name = inert_line(word)
        raise UsageError(f"{name} is a command, no file: to run what it starts, write ampwise run -- {name} ...")


def _is_launcher(word: str) -> bool:
    """Whether the word after ``--`` is a command; a script may stand there too."""
    return not (word.endswith(".py") and Path(word).is_file() and shutil.which(word) is None)


def _show_code(target: Target, spec: LaunchSpec) -> int:
    """Print the lines as a diff on stdout, and what else is to be said on stderr."""
    from ampwise.runner.show_code import show_code
    from ampwise.runtime.hardware.device import choose_precision
    from ampwise.runtime.hardware.placement import use_device

    path, source = source_of(target)
    if has_syntax_error(source, str(Path(path).absolute())):
        return 1
    with use_device(spec.device) as device:
        choice = choose_precision(spec.precision, device=device)
    shown = show_code(source, filename=path, precision=choice.precision, device_type=device.type)
    click.echo(shown.diff, nl=False)
    for note in shown.notes:
        say(note)
    return 0


def _launch(words: tuple[str, ...], spec: LaunchSpec, voice: _Voice) -> int:
    """Run a launcher; what its processes did, they leave behind."""
    status = run_command(words, environ=children_environment(spec, own_environment()))
    with session(spec) as current:  # only to read what they left
        return _close(current, ScriptEnd(status=status), voice)


def _run(target: Target, spec: LaunchSpec, voice: _Voice, leaving: _Leaving, *, is_warned: bool) -> int:
    """Run a script in this process; ``is_warned``: of options of ours behind it, before."""
    refusals: list[AmpwiseError] = []

    def on_error(error: BaseException) -> int:
        sentence = missing_cuda(error)
        if sentence is None:
            place = None if isinstance(error, AmpwiseError) else own_place(error)  # a refusal is no fault
            status = show_error(error)
            if place is not None:
                say(f"the error was raised in ampwise itself, at {place}; this is a fault of ampwise's")
            return status
        refusals.append(CannotRunError(sentence))
        return refusals[0].exit_status

    announce(spec)
    with session(spec, command=target.command, environ=own_environment()) as current:
        end = run_target(target, on_error=on_error)
    if refusals:
        raise refusals[0]
    if leaving.is_fork:
        current.leave_report()
        return end.status
    leaving.is_interrupted = end.interrupted
    if isinstance(end.error, SystemExit) and not is_warned:
        hint_after_refusal(target, command, f"exit status {end.status}")
    return _close(current, end, voice)


def _close(current: Session, end: ScriptEnd, voice: _Voice) -> int:
    team = None if end.interrupted else team_of(own_environment())
    if team is not None and team.is_led:
        put_report(team, current.report())
        return end.status
    summary = current.summary()
    if team is not None and end.status == 0:
        summary = together([current.report(), *gather_reports(team)])
    if end.status == 0 and summary.num_steps == 0:
        raise CannotRunError(NO_STEP_FOUND + ("; the script did not import torch" if current.is_idle else ""))
    voice.tell(summary, status=end.status, failure=_failure(end))
    return INTERRUPTED if end.interrupted else end.status


def _failure(end: ScriptEnd) -> str | None:
    """How the run failed, in one line; None where it did not."""
    if end.status == 0:
        return None
    if end.error is None or isinstance(end.error, SystemExit):
        return f"exit status {end.status}"
    failure = describe(end.error)
    told = f"ended by {failure.kind}" + (f" at {failure.where}" if failure.where else "")
    return f"{told}. {LOST_PEER}" if has_lost_peer(failure.message) and team_of(own_environment()) else told

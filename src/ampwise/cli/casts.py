"""``ampwise casts``: which formats a script computes in, and the casts that takes."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ampwise._base.errors import CannotRunError
from ampwise._base.text import inert_line
from ampwise.cli.completion import complete_plans, complete_precisions
from ampwise.cli.exits import COULD_NOT_RUN, INTERRUPTED, say
from ampwise.cli.misplaced import hint_after_refusal, warn_of_misplaced
from ampwise.cli.options import lists_option, module_option, script_words, target_of
from ampwise.cli.scripts import check_device, check_script, progress_bar
from ampwise.cli.unwind import signals_unwind
from ampwise.emulate.recipes import get_recipe
from ampwise.runner.planned import as_asked
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec, Lists

if TYPE_CHECKING:
    from ampwise.records.run import RunRecord


@click.command(
    name="casts",
    context_settings={"allow_interspersed_args": False},
    short_help="Show what a script computes in which format, and its casts.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Steps to run; all but the first are watched.",
)
@click.option(
    "--precision",
    shell_complete=complete_precisions,
    metavar="NAME",
    help="auto (default), fp32, tf32, bf16, fp16, or a preset.",
)
@click.option(
    "--plan", shell_complete=complete_plans, metavar="PLAN", help="What runs in which format: a plan file, a preset."
)
@click.option("--emulate", metavar="FORMAT", help="As if this CPU had the format's hardware: fp16, tf32, fp8_e4m3.")
@module_option
@click.option("--device", metavar="DEVICE", help="cpu, cuda:1, ...: the current device of the run.")
@lists_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
@script_words
def command(words: tuple[str, ...], **options: Any) -> int:
    """Show which formats a training script computes in, by module and operator, and what its casts cost.

    \b
    ampwise casts train.py --lr 3e-4
    ampwise casts --emulate fp16 --json train.py

    The script runs for --steps optimizer steps in a process of its own. Its
    files are left alone: what it saves goes to a scratch folder that is removed.
    """  # noqa: D301 - click's mark for a block kept as it is
    spec = _spec(options)
    target = target_of(words, is_module=options["is_module"])
    status = check_script(target, verb="casts")
    if status:
        return status
    check_device(spec.device)
    is_warned = warn_of_misplaced(target, command)
    run = _run(target, spec)
    if options["as_json"]:
        from ampwise.report.casts import casts_json

        click.echo(json.dumps(casts_json(run), indent=1, allow_nan=False))
    else:
        from ampwise.report.casts import render_casts
        from ampwise.report.text import stdout_console

        render_casts(run, stdout_console())
    status = _told_failure(run)
    if run.failure is not None and not is_warned:
        hint_after_refusal(target, command, run.failure.kind)
    return status


def _spec(options: Mapping[str, Any]) -> LaunchSpec:
    emulate = None if options["emulate"] is None else get_recipe(options["emulate"]).name
    spec = LaunchSpec(
        precision=emulate or "auto",
        emulate=emulate,
        lists=Lists(options["lists"]),
        device=options["device"],
        stop_after=options["steps"],
        instruments=("casts",),
    )
    return as_asked(spec, plan=options["plan"], precision=options["precision"])


def _run(target: Target, spec: LaunchSpec) -> "RunRecord":
    """The run's record; nothing of it is left on disk.

    Raises:
        CannotRunError: the script makes no training step, and says not why.
    """
    from dataclasses import replace

    from ampwise.records.run import RunEnd
    from ampwise.runner.child import run_child
    from ampwise.runner.summary import NO_STEP_FOUND

    scratch = tempfile.mkdtemp(prefix="ampwise-casts-")
    try:
        with signals_unwind(), progress_bar() as show:
            run = run_child(
                target,
                replace(spec, scratch=scratch),
                on_step=lambda num_steps: show("watching the casts", num_steps, spec.stop_after),
            )
    except KeyboardInterrupt:
        say("interrupted; no casts were shown")
        raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if run.end is RunEnd.NO_STEPS:
        raise CannotRunError(NO_STEP_FOUND)
    return run


def _told_failure(run: "RunRecord") -> int:
    """Say how a run failed; the command's status: what was watched before is shown all the same."""
    if run.failure is None:
        return 0
    where = f" at {run.failure.where}" if run.failure.where else ""
    say(f"the script ended early{where}: {run.failure.kind}: {inert_line(run.failure.message, max_length=400)}")
    return 0 if run.casts is not None and run.casts.steps else COULD_NOT_RUN

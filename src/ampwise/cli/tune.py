"""``ampwise tune``: find which modules of a script have to stay in fp32, and write a plan of it."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ampwise._base.errors import PlanError, UsageError
from ampwise._base.text import inert_line
from ampwise.cli.completion import complete_plans
from ampwise.cli.exits import INTERRUPTED, say
from ampwise.cli.misplaced import hint_after_refusal, warn_of_misplaced
from ampwise.cli.options import malloc_option, module_option, script_words, target_of
from ampwise.cli.scripts import check_device, check_files, check_script, progress_bar, remove_empty
from ampwise.cli.teams import refuse_ranks
from ampwise.cli.unwind import signals_unwind
from ampwise.plan.file import load_plan, parse_plan
from ampwise.plan.find import find_plan
from ampwise.plan.writing import save_plan
from ampwise.runner.script import Target
from ampwise.runner.spec import Malloc

if TYPE_CHECKING:
    from ampwise.records.tuning import TuningRecord
    from ampwise.tune.question import Question
    from ampwise.tune.tune import Tuner

_NO_PLAN = 1
_PATH = click.Path(path_type=Path)


@click.command(
    name="tune",
    context_settings={"allow_interspersed_args": False},
    short_help="Find which modules must stay in fp32; write a plan.",
)
@click.option("-o", "--output", type=_PATH, required=True, metavar="FILE", help="Where the plan goes.")
@click.option(
    "--target", "low", default="fp16", show_default=True, metavar="FORMAT", help="To compute in: fp16, bf16, fp8."
)
@click.option(
    "--keep-in", "high", default="fp32", show_default=True, metavar="FORMAT", help="For the rest: fp32, bf16."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    metavar="SHARE",
    help="How far the mean loss may be from fp32's: 0.01 is 1 %. Default: as far as another seed, and 1 % at least.",
)
@click.option("--steps", type=click.IntRange(min=1), default=30, show_default=True, metavar="N", help="Of each run.")
@click.option("--budget", type=click.FloatRange(min=0.0), metavar="MINUTES", help="Begin no further run after so long.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Added to the script's seeds."
)
@click.option(
    "--plan", shell_complete=complete_plans, metavar="PLAN", help="Begin with this plan's rules: a file, a preset."
)
@click.option("--resume", is_flag=True, help="Go on where a search for the same FILE ended.")
@module_option
@click.option("--device", metavar="DEVICE", help="cpu, cuda:1, ...: the current device of the runs.")
@malloc_option("CPU allocator of the runs: tuned, system, or auto.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the text.")
@script_words
def command(words: tuple[str, ...], **options: Any) -> int:
    """Find which modules of a training script have to stay in fp32, and write a plan.

    \b
    ampwise tune -o plan.toml train.py --lr 3e-4
    ampwise tune --target fp8 --budget 20 -o plan.toml train.py
    ampwise run --plan plan.toml train.py --lr 3e-4

    The script runs many times, a few steps each; on a CPU the format is emulated.
    Its files are left alone: what it saves goes to a scratch folder.
    Exit status: 0 a plan was written, 1 there is none, 2 wrong usage, 3 not run.
    """  # noqa: D301 - click's mark for a block kept as it is
    refuse_ranks(verb="tune", then="run --plan plan.toml train.py")
    question = _question(options)
    target = target_of(words, is_module=options["is_module"])
    state = _state_of(options["output"])
    check_files({"--output": options["output"], "the search's state": state}, target)
    _check_replaced(options["output"])
    status = check_script(target, verb="tune")
    if status:
        return status
    check_device(question.device)
    is_warned = warn_of_misplaced(target, command)
    record = _tuned(target, question, state, output=options["output"], resume=options["resume"])
    _save(record, options["output"])
    _tell(record, options, target, state)
    if record.plan is not None:
        return 0
    if not is_warned:
        hint_after_refusal(target, command, record.explanation)
    return _NO_PLAN


def _save(record: "TuningRecord", output: Path) -> None:
    from ampwise.report.tuning import facts

    if record.plan is not None:
        save_plan(parse_plan(record.plan), output, facts=tuple(facts(record)))


def _question(options: Mapping[str, Any]) -> "Question":
    from ampwise.tune.question import Question, format_called

    return Question(
        low=format_called(options["low"]),
        high=options["high"],
        tolerance=options["tolerance"],
        base=None if options["plan"] is None else find_plan(options["plan"]),
        num_steps=options["steps"],
        seed=options["seed"],
        budget_min=options["budget"],
        device=options["device"],
        malloc=Malloc(options["malloc"]),
    )


def _check_replaced(output: Path) -> None:
    """Refuse to write over a file that is no plan: a script, another tool's configuration."""
    try:
        if output.is_file() and output.stat().st_size:
            load_plan(output)
    except PlanError as error:
        name = inert_line(str(output))
        raise UsageError(
            f"{name} is there and is no plan that ampwise can read, so it is not replaced; name another file, or "
            f"remove it ({inert_line(str(error), max_length=200)})"
        ) from error


def _state_of(output: Path) -> Path | None:
    """Where a search keeps what it did, beside its plan; nowhere beside a pipe or a device."""
    if output.exists() and not output.is_file():
        return None
    return output.with_name(f"{output.name}.state")


def _tuned(target: Target, question: "Question", state: Path | None, *, output: Path, resume: bool) -> "TuningRecord":
    from ampwise.tune.tune import Tuner

    scratch = tempfile.mkdtemp(prefix="ampwise-tune-")
    tuner = Tuner(target=target, question=question, state=state, resume=resume, saved=str(Path(scratch, "saved")))
    try:
        with signals_unwind(), progress_bar() as show:
            tuner.on_progress = lambda progress: show(progress.what, progress.num_done, progress.num_steps)
            return tuner.tune()
    except (KeyboardInterrupt, SystemExit) as stopped:
        _keep(tuner, output)
        raise stopped if isinstance(stopped, SystemExit) else click.exceptions.Exit(INTERRUPTED) from None
    finally:
        shutil.rmtree(Path(scratch, "output"), ignore_errors=True)  # the last run's; the others' went with the next
        remove_empty(scratch)


def _keep(tuner: "Tuner", output: Path) -> None:
    """Write the best plan that had passed when the search was stopped from outside, and say what there is."""
    record = tuner.best_so_far()
    if record is None:
        say("interrupted")
        return
    _save(record, output)
    best = f"; {inert_line(str(output))} has the best plan so far: {record.explanation}" if record.plan else ""
    say(f"interrupted{best}; what was done is kept in {inert_line(str(tuner.state))}: go on with --resume")


def _tell(record: "TuningRecord", options: Mapping[str, Any], target: Target, state: Path | None) -> None:
    from ampwise.report.text import stdout_console
    from ampwise.report.tuning import render_tuning, tuning_json

    if options["as_json"]:
        click.echo(json.dumps(tuning_json(record), indent=2))
    else:
        render_tuning(record, stdout_console())
    if record.plan is not None:
        name, script = (inert_line(str(one), max_length=1000) for one in (options["output"], " ".join(target.command)))
        emulate = f" --emulate {record.target}" if record.emulated else ""
        click.echo(f"plan: {name}; follow it with: ampwise run --plan {name}{emulate} {script}", err=True)
    if state is not None and state.exists():
        click.echo(f"to go on: the same command with --resume (what was done is in {state})", err=True)

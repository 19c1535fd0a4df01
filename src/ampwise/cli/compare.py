"""``ampwise compare``: a script in several precisions, and what each gained."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ampwise._base.files import write_atomically
from ampwise._base.text import inert_line
from ampwise.cli.completion import complete_precisions
from ampwise.cli.exits import COULD_NOT_RUN, INTERRUPTED, say
from ampwise.cli.misplaced import hint_after_refusal, warn_of_misplaced
from ampwise.cli.options import lists_option, malloc_option, module_option, script_words, target_of
from ampwise.cli.report import print_recording
from ampwise.cli.scripts import Show, check_device, check_files, check_script, progress_bar, remove_empty
from ampwise.cli.teams import follow_leader, runner_of_ranks
from ampwise.cli.unwind import signals_unwind
from ampwise.compare.schedule import ComparisonPlan
from ampwise.compare.variants import parse_variants
from ampwise.records.files import save_recording
from ampwise.runner.script import Target
from ampwise.runner.spec import Lists, Malloc

if TYPE_CHECKING:
    from ampwise.compare.measure import Progress
    from ampwise.records.recording import Recording

_PATH = click.Path(path_type=Path)


@click.command(
    name="compare",
    context_settings={"allow_interspersed_args": False},
    short_help="Run a script in several precisions; show what each gained.",
)
@click.option(
    "--precision",
    shell_complete=complete_precisions,
    metavar="NAMES",
    help="What to compare; ratios are to the first: fp32, tf32, bf16, fp16, auto or a plan.toml; +compile compiles. "
    "Default: fp32,auto; with --emulate fp32.",
)
@click.option(
    "--emulate",
    metavar="FORMATS",
    help="Compare with this CPU's emulation too: tf32, bf16, fp16, fp8_e4m3, fp8_e5m2. Its losses are what to look at.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    metavar="N",
    help="Optimizer steps of each run.",
)
@click.option(
    "--repeat", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Runs of each variant."
)
@click.option(
    "--eval",
    "evaluates",
    is_flag=True,
    help="The script only evaluates: time its model's forward passes, and say how far outputs are from fp32's.",
)
@click.option("--project-steps", type=click.IntRange(min=1), metavar="N", help="Say how long N steps would take.")
@click.option("--report", type=_PATH, metavar="FILE", help="Write one self-contained HTML file.")
@click.option("--record", type=_PATH, metavar="FILE", help="Save all that was measured, for `ampwise report`.")
@module_option
@click.option("--device", metavar="DEVICE", help="cpu, cuda:1, ...: the current device of the runs.")
@lists_option
@malloc_option("CPU allocator of all variants alike: tuned, system, or auto.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the table.")
@script_words
def command(words: tuple[str, ...], **options: Any) -> int:
    """Run a training script in several precisions and show what each gained.

    \b
    ampwise compare train.py --lr 3e-4
    ampwise compare --precision fp32,bf16+compile --report r.html train.py
    ampwise compare --eval evaluate.py

    Each run is a process of its own and ends after --steps optimizer steps. The
    script's files are left alone: what it saves goes to a scratch folder. Its
    output is not shown; it is kept, and named, where a run fails.
    """  # noqa: D301 - click's mark for a block kept as it is
    plan = _plan(options)
    target = target_of(words, is_module=options["is_module"])
    check_files({"--report": options["report"], "--record": options["record"]}, target)
    status = check_script(target, verb="compare")
    if status:
        return status
    check_device(plan.device)
    followed = follow_leader(target, verb="compare")
    if followed is not None:
        return followed
    is_warned = warn_of_misplaced(target, command)
    recording, interrupted = _measure(target, plan)
    _write(recording, options)
    print_recording(recording, as_json=options["as_json"])
    if interrupted:
        say("interrupted; this is what had been measured")
        return INTERRUPTED
    errors = [row.error for row in _rows(recording)]
    if None in errors:
        return 0
    if not is_warned:
        hint_after_refusal(target, command, errors[0])
    return COULD_NOT_RUN


def _plan(options: Mapping[str, Any]) -> ComparisonPlan:
    precision, emulate = options["precision"], options["emulate"]
    return ComparisonPlan(
        variants=parse_variants(precision or ("fp32,auto" if emulate is None else "fp32"), emulate=emulate),
        num_steps=options["steps"],
        num_repeats=options["repeat"],
        project_steps=options["project_steps"],
        evaluates=options["evaluates"],
        device=options["device"],
        malloc=Malloc(options["malloc"]),
        lists=Lists(options["lists"]),
    )


def _measure(target: Target, plan: ComparisonPlan) -> "tuple[Recording, bool]":
    """The recording, and whether Ctrl-C cut it short."""
    from dataclasses import replace

    from ampwise.compare.measure import ComparisonInterrupted, compare

    scratch = tempfile.mkdtemp(prefix="ampwise-compare-")
    try:
        with signals_unwind(), progress_bar() as show, runner_of_ranks() as run:
            return compare(target, replace(plan, scratch=scratch), on_progress=_shown_by(show), run=run), False
    except ComparisonInterrupted as interrupted:
        return interrupted.recording, True
    except KeyboardInterrupt:
        say("interrupted before a run had finished; nothing was measured")
        shutil.rmtree(scratch, ignore_errors=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)  # nobody is told of what lies there
        raise
    finally:
        remove_empty(scratch)


def _shown_by(show: Show) -> "Callable[[Progress], None]":
    def tell(progress: "Progress") -> None:
        show(f"run {progress.run} of {progress.num_runs}: {progress.variant}", progress.num_done, progress.num_total)

    return tell


def _write(recording: "Recording", options: Mapping[str, Any]) -> None:
    """The record first: the page can be made again from it."""
    if options["record"] is not None:
        save_recording(recording, options["record"])
    if options["report"] is not None:
        from ampwise.report.html import render_html

        write_atomically(options["report"], render_html(recording))
    for name in ("record", "report"):
        if options[name] is not None:
            click.echo(f"{name}: {inert_line(str(options[name]), max_length=1000)}", err=True)


def _rows(recording: "Recording") -> Any:
    return recording.comparison.variants if recording.comparison is not None else ()

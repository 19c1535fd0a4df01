"""``ampwise doctor``: run a script under instruments and say what is wrong with its training."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ampwise._base.errors import CannotRunError
from ampwise._base.files import write_atomically
from ampwise._base.text import inert_line
from ampwise.cli.completion import complete_plans, complete_precisions
from ampwise.cli.exits import INTERRUPTED, say
from ampwise.cli.misplaced import hint_after_refusal, warn_of_misplaced
from ampwise.cli.options import lists_option, malloc_option, module_option, nvtx_option, script_words, target_of
from ampwise.cli.scripts import check_device, check_files, check_script, progress_bar, remove_empty
from ampwise.cli.teams import follow_leader, runner_of_ranks
from ampwise.cli.unwind import signals_unwind
from ampwise.emulate.recipes import get_recipe
from ampwise.records.crash_kind import CrashKind, crash_kind
from ampwise.records.files import save_recording
from ampwise.records.run import Role
from ampwise.runner.planned import as_asked
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec, Lists, Malloc

if TYPE_CHECKING:
    from ampwise.records.diagnosis import Diagnosis
    from ampwise.records.recording import Recording

_PATH = click.Path(path_type=Path)
_SAYING: Final = {
    Role.WATCHED: "watching the training",
    Role.TRACED: "tracing the first value that is not finite",
    Role.UNSCALED: "again without the loss scale",
    Role.IN_FP32: "again in fp32",
    Role.RESCUED: "again with the suspects in fp32",
}


@click.command(
    name="doctor",
    context_settings={"allow_interspersed_args": False},
    short_help="Say why a training gives NaN, no speed-up or no memory.",
)
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Steps to watch.")
@click.option(
    "--precision",
    shell_complete=complete_precisions,
    metavar="NAME",
    help="auto (default), a format or a preset; unless the script has its own.",
)
@click.option("--emulate", metavar="FORMAT", help="As if this CPU had the format's hardware: fp16, tf32, fp8_e4m3.")
@click.option(
    "--plan", shell_complete=complete_plans, metavar="PLAN", help="Watch it under this plan: a file, a preset."
)
@click.option("--report", type=_PATH, metavar="FILE", help="Write one self-contained HTML file.")
@click.option("--record", type=_PATH, metavar="FILE", help="Where the recording goes; default: a folder for scratch.")
@click.option("--sarif", type=_PATH, metavar="FILE", help="Write the findings for a code host.")
@click.option("--write-plan", type=_PATH, metavar="FILE", help="Write the remedies that a plan can carry out as one.")
@module_option
@click.option("--device", metavar="DEVICE", help="cpu, cuda:1, ...: the current device of the runs.")
@lists_option
@malloc_option("CPU allocator of the runs: tuned, system, or auto.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of the text.")
@nvtx_option
@script_words
def command(words: tuple[str, ...], **options: Any) -> int:
    """Run a training script under instruments and say what is wrong, where, and what to do.

    \b
    ampwise doctor train.py --lr 3e-4
    ampwise doctor --emulate fp16 --report r.html train.py

    The script's files are left alone: what it saves goes to a scratch folder.
    Exit status: 0 healthy, 1 errors or warnings, 2 wrong usage, 3 not run.
    """  # noqa: D301 - click's mark for a block kept as it is
    spec = _spec(options)
    target = target_of(words, is_module=options["is_module"])
    files = ("report", "record", "sarif", "write_plan")
    check_files({f"--{name.replace('_', '-')}": options[name] for name in files}, target)
    status = check_script(target, verb="doctor")
    if status:
        return status
    check_device(spec.device)
    followed = follow_leader(target, verb="doctor")
    if followed is not None:
        return followed
    is_warned = warn_of_misplaced(target, command)
    recording, record = _examined(target, spec, options["record"])
    status = _told(recording, record, options, given=spec.plan)
    failure = recording.runs[0].failure
    if failure is not None and not is_warned:
        hint_after_refusal(target, command, failure.kind)
    return status


def _spec(options: Mapping[str, Any]) -> LaunchSpec:
    emulate = None if options["emulate"] is None else get_recipe(options["emulate"]).name
    spec = LaunchSpec(
        precision=emulate or "auto",
        emulate=emulate,
        lists=Lists(options["lists"]),
        malloc=Malloc(options["malloc"]),
        device=options["device"],
        nvtx=options["nvtx"],
        stop_after=options["steps"],
    )
    return as_asked(spec, plan=options["plan"], precision=options["precision"])


def _examined(target: Target, spec: LaunchSpec, record: Path | None) -> "tuple[Recording, Path]":
    """The recording, and the file in which it is kept."""
    from dataclasses import replace

    from ampwise.examine.examine import Progress, examine

    scratch = tempfile.mkdtemp(prefix="ampwise-doctor-")
    kept = record or Path(scratch, "recording.json")
    try:
        with signals_unwind(), progress_bar(has_lines=True) as show, runner_of_ranks() as run:

            def tell(progress: Progress) -> None:
                show(_SAYING[progress.role], progress.num_done, progress.num_steps)

            recording = examine(target, replace(spec, scratch=scratch), on_progress=tell, run=run)
        save_recording(recording, kept)
    except KeyboardInterrupt:
        shutil.rmtree(scratch, ignore_errors=True)
        say("interrupted; nothing was diagnosed")
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)  # nobody is told of what lies there
        raise
    remove_empty(scratch)
    if record is not None and Path(scratch).exists():
        click.echo(f"what the runs printed and saved: {scratch}", err=True)
    return recording, kept


def _refuse_own_fault(recording: "Recording") -> None:
    """Say that ampwise failed, before anything is said of the script.

    Raises:
        CannotRunError: the first run ended in ampwise's own code.
    """
    failure = recording.runs[0].failure
    if failure is not None and crash_kind(failure) is CrashKind.OWN:
        place = inert_line(failure.own_place or "", max_length=200)
        raise CannotRunError(
            f"this is a fault of ampwise's, at {place}, and says nothing of your script: "
            f"{inert_line(failure.kind)}: {inert_line(failure.message, max_length=300)}. Please report it"
        )


def _told(recording: "Recording", record: Path, options: Mapping[str, Any], *, given: str | None) -> int:
    """Print the diagnosis and write what was asked for; the command's status.

    Args:
        recording: What was seen.
        record: The file it is kept in.
        options: The command's.
        given: The plan that it was watched under.
    """
    from ampwise.doctor.diagnose import diagnose

    _refuse_own_fault(recording)
    diagnosis = diagnose(recording)
    plan_file = None if options["write_plan"] is None else _write_plan(recording, diagnosis, options, given)
    _write(recording, diagnosis, options)
    if options["as_json"]:
        from ampwise.report.diagnosis import diagnosis_json

        click.echo(json.dumps(diagnosis_json(recording, diagnosis), indent=2))
    else:
        from ampwise.report.diagnosis import render_diagnosis
        from ampwise.report.text import stdout_console

        hint = f"ampwise report --all {inert_line(str(record), max_length=1000)}"
        render_diagnosis(recording, diagnosis, stdout_console(), how_to_see_all=hint, plan_file=plan_file)
    click.echo(f"recording: {inert_line(str(record), max_length=1000)}", err=True)
    return int(not diagnosis.is_healthy)


def _write_plan(
    recording: "Recording", diagnosis: "Diagnosis", options: Mapping[str, Any], given: str | None
) -> str | None:
    """Write the findings' rules behind those of the plan that was given; the file, None where there are no rules."""
    from dataclasses import replace

    from ampwise.plan.file import parse_plan
    from ampwise.plan.writing import pinned, to_toml
    from ampwise.report.diagnosis import whole_plan

    path = inert_line(str(options["write_plan"]), max_length=1000)
    text = whole_plan(diagnosis, recording.runs[0])
    if text is None:
        say(f"no finding has a remedy that a plan could carry out, so {path} was not written")
        return None
    plan = parse_plan(text)
    if given is not None:
        old, named = parse_plan(given), {rule.selector for rule in plan.rules}
        plan = replace(old, rules=(*(one for one in old.rules if one.selector not in named), *plan.rules))
    write_atomically(options["write_plan"], to_toml(pinned(plan)))
    click.echo(f"plan: {path}", err=True)
    return path


def _write(recording: "Recording", diagnosis: "Diagnosis", options: Mapping[str, Any]) -> None:
    if options["sarif"] is not None:
        from ampwise.cli.findings import write_sarif

        write_sarif(options["sarif"], diagnosis)
    if options["report"] is not None:
        from ampwise.report.html import render_html

        write_atomically(options["report"], render_html(recording, diagnosis))
    for name in ("sarif", "report"):
        if options[name] is not None:
            click.echo(f"{name}: {inert_line(str(options[name]), max_length=1000)}", err=True)

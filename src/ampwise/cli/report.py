"""``ampwise report``: render a saved recording again, or two side by side, without torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ampwise._base.errors import UsageError
from ampwise._base.files import check_writable, write_atomically
from ampwise._base.text import inert_line
from ampwise.cli.exits import say
from ampwise.records.files import load_recording

if TYPE_CHECKING:
    from ampwise.records.diagnosis import Diagnosis
    from ampwise.records.recording import Recording
    from ampwise.report.side_by_side import Side

_HEAD_CHARS = 4096
_PATH = click.Path(path_type=Path)


@click.command("report", short_help="Render a saved recording again, or two side by side.")
@click.argument("records", type=_PATH, nargs=-1, required=True, metavar="RECORD [RECORD]")
@click.option("-o", "--output", "--html", type=_PATH, metavar="FILE", help="HTML file  [default: RECORD with .html]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; write HTML only with -o.")
@click.option("--all", "show_all", is_flag=True, help="Print every finding in full.")
@click.option("--sarif", type=_PATH, metavar="FILE", help="Write the findings for a code host.")
@click.option(
    "--tensorboard", type=_PATH, metavar="LOGDIR", help="Write scalars, histograms and findings for TensorBoard."
)
def command(records: tuple[Path, ...], **options: Any) -> None:
    """Render RECORD, which `ampwise compare` or `doctor` wrote with --record.

    \b
    ampwise report run.json
    ampwise report before.json after.json

    Prints what the command printed, and writes one self-contained HTML file. Two
    records are set side by side: what changed, which findings are gone or new.
    Their HTML file is written with -o only.
    """  # noqa: D301 - click's mark for a block kept as it is
    match records:
        case (record,):
            _render(record, options)
        case (before, after):
            _compare(before, after, options)
        case _:
            raise UsageError(f"{len(records)} records were given; report shows one, or two side by side")


def _render(record: Path, options: Mapping[str, Any]) -> None:
    recording = load_recording(record)
    diagnosis = _diagnosis(recording)
    page = _page(options, (record,), default=None if options["as_json"] else record.with_suffix(".html"))
    if options["tensorboard"] is not None:
        from ampwise.integrations.tensorboard import write_events

        write_events(recording, options["tensorboard"], diagnosis=diagnosis)
    if options["sarif"] is not None:
        _write_sarif(options["sarif"], diagnosis)
    if page is not None:
        from ampwise.report.html import render_html

        write_atomically(page, render_html(recording, diagnosis))
    print_recording(recording, diagnosis, as_json=options["as_json"], show_all=options["show_all"], record=record)
    _say_where({"report": page, "sarif": options["sarif"], "tensorboard": options["tensorboard"]}, options)


def print_recording(
    recording: "Recording",
    diagnosis: "Diagnosis | None" = None,
    *,
    as_json: bool,
    show_all: bool = False,
    record: Path | None = None,
) -> None:
    """Print a recording on stdout, as the command that made it did: as text, or as one JSON document."""
    if as_json:
        click.echo(json.dumps(_document(recording, diagnosis), indent=1, allow_nan=False))
        return
    from ampwise.report.text import render_table, stdout_console

    if diagnosis is None:
        render_table(recording, stdout_console())
        return
    from ampwise.report.diagnosis import render_diagnosis

    hint = "" if record is None else f"ampwise report --all {inert_line(str(record), max_length=1000)}"
    render_diagnosis(recording, diagnosis, stdout_console(), show_all=show_all, how_to_see_all=hint)


def _document(recording: "Recording", diagnosis: "Diagnosis | None") -> dict[str, Any]:
    if diagnosis is None:
        from ampwise.report.machine import comparison_json

        return comparison_json(recording)
    from ampwise.report.diagnosis import diagnosis_json

    return diagnosis_json(recording, diagnosis)


def _diagnosis(recording: "Recording") -> "Diagnosis | None":
    """What doctor makes of it now; None of a comparison's recording, and of one without runs."""
    if recording.comparison is not None or not recording.runs:
        return None
    from ampwise.doctor.diagnose import diagnose

    return diagnose(recording)


def _compare(before: Path, after: Path, options: Mapping[str, Any]) -> None:
    for name in ("sarif", "tensorboard", "show_all"):
        if options[name]:
            raise UsageError(f"--{name.removeprefix('show_')} is for one record; two were given")
    from ampwise.report.side_by_side import side_by_side, side_by_side_json

    both = side_by_side(_side(before), _side(after))
    page = _page(options, (before, after), default=None)
    if page is not None:
        from ampwise.report.side_by_side_views import render_side_by_side_html

        write_atomically(page, render_side_by_side_html(both))
    if options["as_json"]:
        click.echo(json.dumps(side_by_side_json(both), indent=1, allow_nan=False))
    else:
        from ampwise.report.side_by_side_views import render_side_by_side
        from ampwise.report.text import stdout_console

        render_side_by_side(both, stdout_console())
    _say_where({"report": page}, options)


def _side(path: Path) -> "Side":
    from ampwise.report.side_by_side import Side

    recording = load_recording(path)
    return Side(name=str(path), recording=recording, diagnosis=_diagnosis(recording))


def _write_sarif(path: Path, diagnosis: "Diagnosis | None") -> None:
    if diagnosis is None:
        raise UsageError("--sarif: a comparison's recording has no findings; `ampwise doctor` makes one that has")
    from ampwise.cli.findings import write_sarif

    write_sarif(path, diagnosis)


def _say_where(written: Mapping[str, Path | None], options: Mapping[str, Any]) -> None:
    for name, path in written.items():
        if path is not None:
            click.echo(f"{name}: {inert_line(str(path), max_length=1000)}", err=options["as_json"])


def _page(options: Mapping[str, Any], records: tuple[Path, ...], *, default: Path | None) -> Path | None:
    """Where the page goes; said before any work where it cannot be written there."""
    named: Path | None = options["output"]
    page = named or default
    if page is None:
        return None
    if any(page.resolve() == record.resolve() for record in records):
        raise UsageError(f"{page} is the record itself; name another file with -o")
    if named is None and page.exists() and not _is_report(page):
        raise UsageError(f"{page} exists and is no report of ampwise's; name the file to write with -o")
    try:
        check_writable(page)
    except UsageError as error:
        if named is not None:
            raise
        say(f"no page is written: {error}, with -o")
        return None
    return page


def _is_report(page: Path) -> bool:
    """Whether ampwise wrote ``page``."""
    from ampwise.report.page import GENERATOR

    try:
        with page.open(encoding="utf-8", errors="replace") as file:
            return f'name="generator" content="{GENERATOR}' in file.read(_HEAD_CHARS)
    except OSError:
        return False

"""``ampwise report``: render a saved recording again, without torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ampwise._base.errors import UsageError
from ampwise._base.files import check_writable, write_atomically
from ampwise._base.text import inert_line
from ampwise.records.files import load_recording

if TYPE_CHECKING:
    from ampwise.records.recording import Recording

_HEAD_CHARS = 4096


@click.command("report", short_help="Render a saved recording again.")
@click.argument("record", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The HTML file  [default: RECORD with .html]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; write HTML only with -o.")
def command(record: Path, output: Path | None, *, as_json: bool) -> None:
    """Render RECORD, which `ampwise compare --record` wrote.

    Prints the table, and writes one self-contained HTML file.
    """
    recording = load_recording(record)
    page = output if output is not None or as_json else record.with_suffix(".html")
    if page is not None:
        _check_page(page, record, was_named=output is not None)
    if page is not None:
        from ampwise.report.html import render_html

        write_atomically(page, render_html(recording))
    print_recording(recording, as_json=as_json)
    if page is not None:
        click.echo(f"report: {inert_line(str(page), max_length=1000)}", err=as_json)


def print_recording(recording: "Recording", *, as_json: bool) -> None:
    """Print a recording on stdout: as a table, or as one JSON document."""
    if as_json:
        from ampwise.report.machine import comparison_json

        click.echo(json.dumps(comparison_json(recording), indent=1, allow_nan=False))
        return
    from ampwise.report.text import render_table, stdout_console

    render_table(recording, stdout_console())


def _check_page(page: Path, record: Path, *, was_named: bool) -> None:
    """Say before any work that the page cannot be written where it should go."""
    if page.resolve() == record.resolve():
        raise UsageError(f"{page} is the record itself; name another file with -o")
    if not was_named and page.exists() and not _is_report(page):
        raise UsageError(f"{page} exists and is no report of ampwise's; name the file to write with -o")
    check_writable(page)


def _is_report(page: Path) -> bool:
    """Whether ampwise wrote ``page``."""
    from ampwise.report.html import GENERATOR

    try:
        with page.open(encoding="utf-8", errors="replace") as file:
            return f'name="generator" content="{GENERATOR}' in file.read(_HEAD_CHARS)
    except OSError:
        return False

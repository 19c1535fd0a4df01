"""In a notebook: ``%load_ext ampwise``, ``%%doctor`` around a cell's loop, and findings as HTML."""

import argparse
import html
import shlex
from collections.abc import Callable
from typing import Any, Final

from ampwise._base.errors import UsageError
from ampwise._base.text import inert, inert_line
from ampwise.doctor.diagnose import diagnose
from ampwise.examine.watch import ALL, watch
from ampwise.records.diagnosis import Diagnosis
from ampwise.records.finding import Finding, Severity
from ampwise.records.recording import Recording

_MARKS: Final = {
    Severity.ERROR: ("✕", "#b3261e"),
    Severity.WARNING: ("!", "#8a5a00"),
    Severity.INFO: ("i", "#3b5b92"),
}


def load_extension(shell: Any) -> None:
    """Give an IPython shell the cell magic ``%%doctor``, and show findings and recordings as HTML."""
    shell.register_magic_function(_magic(shell), magic_kind="cell", magic_name="doctor")
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type(Diagnosis, diagnosis_html)
    formatter.for_type(Recording, recording_html)


def unload_extension(shell: Any) -> None:
    """Take both back."""
    shell.magics_manager.magics["cell"].pop("doctor", None)
    formatter = shell.display_formatter.formatters["text/html"]
    for kind in (Diagnosis, Recording):
        formatter.pop(kind, None)


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """The findings as HTML of their own; every text in it is escaped."""
    found = "".join(_finding(one) for one in diagnosis.findings) or "<p>Nothing was found.</p>"
    well = "".join(f"<li>{_line(text)}</li>" for text in diagnosis.reassurances)
    return f"<div>{found}{f'<details><summary>Found well</summary><ul>{well}</ul></details>' if well else ''}</div>"


def recording_html(recording: Recording) -> str:
    """What each run of a recording was, as a table."""
    head = "".join(f"<th>{name}</th>" for name in ("run", "precision", "steps", "skipped", "end"))
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{_line(str(cell))}</td>"
            for cell in (run.variant, run.precision, len(run.steps), run.num_skipped, run.end.value)
        )
        + "</tr>"
        for run in recording.runs
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _finding(finding: Finding) -> str:
    mark, colour = _MARKS[finding.severity]
    where = f" · <code>{_line(finding.site.where)}</code>" if finding.site is not None and finding.site.where else ""
    parts = [f"<b>{mark} {finding.severity.value} {_line(finding.rule)}</b>{where}<br>{_line(finding.message)}"]
    parts += [
        f"<br><small>{name}: {_line(text)}</small>"
        for name, text in (("seen", finding.evidence), ("do", finding.remedy))
        if text
    ]
    if finding.plan_rule is not None:
        parts.append(f"<pre>{html.escape(inert(finding.plan_rule))}</pre>")
    return f'<div style="border-left:3px solid {colour};padding:0 0 0 .6em;margin:.5em 0">{"".join(parts)}</div>'


def _line(text: str) -> str:
    return html.escape(inert_line(text, max_length=600))


def _magic(shell: Any) -> Callable[[str, str], None]:
    def doctor(line: str, cell: str) -> None:
        """Run the cell, a training loop of some 20 steps, under the doctor's instruments, and show what is wrong.

        ``%%doctor --instruments usage,nonfinite --save run.json``; both may be left out.
        """
        from IPython.display import HTML, display

        options = _options(line)
        watched = watch(instruments=options.instruments.split(",") if options.instruments else ALL)
        with watched:
            shell.run_cell(cell).raise_error()
        if options.save:
            watched.save(options.save)
        display(HTML(diagnosis_html(diagnose(watched))))

    return doctor


def _options(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="%%doctor", add_help=False, exit_on_error=False)
    parser.add_argument("--instruments")
    parser.add_argument("--save")
    known, unknown = parser.parse_known_args(shlex.split(line))
    if unknown:
        raise UsageError(f"%%doctor does not know {' '.join(unknown)}; it knows --instruments NAMES and --save FILE")
    return known

"""Looks at files with rules: reads each, collects what is found, mends what can be mended."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ampwise._base.errors import UsageError
from ampwise.lint.config import Config, fits
from ampwise.lint.files import find_files, read
from ampwise.lint.fix import apply_fixes
from ampwise.lint.notebook import NotANotebookError, Notebook, damaged
from ampwise.lint.rule import Rule
from ampwise.lint.source import SourceFile
from ampwise.lint.text import SourceText
from ampwise.lint.unreadable import UNREADABLE, not_checked, unparsable
from ampwise.records.finding import Finding, Place

MAX_ROUNDS: Final = 20
"""A fix may make the next one possible; so many rounds are more than any file needs."""
_MAX_BYTES: Final = 5 * 10**6
_MAX_NOTEBOOK_BYTES: Final = 200 * 10**6
_REFUSALS: Final = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What was found in one file, and what became of it."""

    path: str
    findings: tuple[Finding, ...] = ()
    """In source order; with fixing, those that are left."""
    fixed: tuple[Finding, ...] = ()
    """Those that were put right."""
    before: str = ""
    after: str = ""
    """The text before and after fixing, of a notebook the code of its cells; equal where nothing was."""
    lines: tuple[str, ...] = ()
    """The source line of each finding."""
    problem: str | None = None
    """Why the fixed text could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mending:
    """How fixes are made."""

    allow_unsafe: bool = False
    write: bool = True
    """Whether files are written; else their new text is only told."""


def lint_paths(
    paths: Sequence[str], rules: Sequence[Rule], config: Config, *, mending: Mending | None = None
) -> Iterator[FileReport]:
    """Look at every file at or below ``paths``, one report each, as they come.

    Raises:
        UsageError: a path does not exist.
    """
    chosen = [rule for rule in rules if config.selects(rule.info)]
    for path in find_files(paths, config):
        yield lint_file(path, chosen, config, mending=mending)


def lint_file(path: str, rules: Sequence[Rule], config: Config, *, mending: Mending | None = None) -> FileReport:
    """What the rules find in one file; a file that cannot be looked at is one finding. Nothing is raised."""
    is_notebook = path.endswith(".ipynb")
    try:
        raw = read(path, max_bytes=_MAX_NOTEBOOK_BYTES if is_notebook else _MAX_BYTES)
        if is_notebook:
            notebook = Notebook(path, raw)
            report = _lint(path, notebook.text, rules, config, notebook=notebook, mending=mending)
        else:
            report = _lint(path, SourceText(raw), rules, config, mending=mending)
    except OSError as error:
        report = _refused(path, not_checked(path, error.strerror or str(error)))
    except NotANotebookError as error:
        report = _refused(path, damaged(path, error))
    except UnicodeDecodeError as error:
        report = _refused(path, not_checked(path, f"it is not {error.encoding} text (byte {error.start})"))
    except _REFUSALS as error:
        report = _refused(path, unparsable(path, error))
    return _without_refusals(report) if fits(UNREADABLE.id, config.ignore) else report


def _refused(path: str, finding: Finding) -> FileReport:
    return FileReport(path=path, findings=(finding,), lines=("",))


def _without_refusals(report: FileReport) -> FileReport:
    kept = [pair for pair in zip(report.findings, report.lines, strict=True) if pair[0].rule != UNREADABLE.id]
    return replace(report, findings=tuple(one for one, _ in kept), lines=tuple(line for _, line in kept))


def _lint(
    path: str,
    text: SourceText,
    rules: Sequence[Rule],
    config: Config,
    *,
    notebook: Notebook | None = None,
    mending: Mending | None = None,
) -> FileReport:
    if config.per_file_ignores and (ignored := config.ignored_in(path)):
        rules = [rule for rule in rules if not fits(rule.info.id, ignored)]
    if mending is None:
        left, done, after = check_text(path, text, rules, target_torch=config.target_torch), [], text
    else:
        after, done, left = fix_text(
            path, text, rules, allow_unsafe=mending.allow_unsafe, target_torch=config.target_torch
        )
    problem = None
    if done and mending is not None and mending.write:
        problem = _write(path, notebook.with_text(after) if notebook is not None else after.encode())
        if problem is not None:
            left, done, after = check_text(path, text, rules, target_torch=config.target_torch), [], text
    lines = [_line(after, finding.place) for finding in left]
    if notebook is not None:
        mapped = Notebook(path, notebook.with_text(after)) if done else notebook
        left = [*mapped.problems, *(_in_cell(mapped, finding) for finding in left)]
        lines = [*("" for _ in mapped.problems), *lines]
    return FileReport(
        path=path,
        findings=tuple(left),
        fixed=tuple(done),
        before=text.text,
        after=after.text,
        lines=tuple(lines),
        problem=problem,
    )


def _write(path: str, content: bytes) -> str | None:
    """Write the file, through links and whole or not at all; what is wrong where that fails."""
    from ampwise._base.files import write_atomically

    target = os.path.realpath(path)
    if not os.access(target, os.W_OK):
        return f"cannot write {path}: you may not write to it"
    try:
        write_atomically(Path(target), content)
    except UsageError as error:
        return str(error)
    return None


def _line(text: SourceText, place: Place | None) -> str:
    return text.line_bytes(place.line).decode(errors="replace").rstrip() if place is not None else ""


def _in_cell(notebook: Notebook, finding: Finding) -> Finding:
    return replace(finding, place=notebook.place(finding.place)) if finding.place is not None else finding


def check_text(
    path: str, text: SourceText, rules: Sequence[Rule], *, target_torch: tuple[int, int] | None = None
) -> list[Finding]:
    """What the rules find in one text, in source order, without what ``# noqa`` silences.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the text does not parse.
    """
    file = SourceFile(path, text, target_torch=target_torch)
    found = [finding for rule in rules for finding in _apply(rule, file)]
    unique = {(one.rule, one.place, one.message): one for one in found if not file.is_silenced(one)}
    return sorted(unique.values(), key=_order)


def _apply(rule: Rule, file: SourceFile) -> list[Finding]:
    try:
        return list(rule.check(file)) if rule.applies_to(file) else []
    except Exception as error:  # noqa: BLE001 - a rule's fault must not hide what the other rules find
        return [not_checked(file.path, f"{rule.info.id} failed with {type(error).__name__}: {error}")]


def fix_text(
    path: str,
    text: SourceText,
    rules: Sequence[Rule],
    *,
    allow_unsafe: bool,
    target_torch: tuple[int, int] | None = None,
) -> tuple[SourceText, list[Finding], list[Finding]]:
    """The text after all fixes, what was put right, and what is left.

    Law: fixing the result again changes nothing.
    """
    done: list[Finding] = []
    for _ in range(MAX_ROUNDS):
        left = check_text(path, text, rules, target_torch=target_torch)
        fixed = apply_fixes(text, left, allow_unsafe=allow_unsafe)
        if not fixed.done or fixed.data == text.data:
            return text, done, left
        done.extend(fixed.done)
        text = text.edited(fixed.data)
    return text, done, check_text(path, text, rules, target_torch=target_torch)


def _order(finding: Finding) -> tuple[int, int, int, str]:
    place = finding.place
    return (place.cell or 0, place.line, place.column, finding.rule) if place is not None else (0, 0, 0, finding.rule)

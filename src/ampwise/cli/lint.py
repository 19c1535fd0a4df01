"""``ampwise lint``: find mixed-precision mistakes in source text; nothing is run, torch is not imported."""

import gc
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import click

from ampwise._base.errors import UsageError
from ampwise._base.text import inert, inert_line
from ampwise.cli.exits import say
from ampwise.lint.config import Config, find_config, parse_codes, parse_release
from ampwise.lint.engine import FileReport, Mending, lint_paths
from ampwise.lint.output import Format, is_fixable, render
from ampwise.lint.rule import all_rules
from ampwise.lint.unreadable import UNREADABLE


@click.command("lint", short_help="Find mixed-precision mistakes in source, without running it.")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@click.option("--fix", is_flag=True, help="Put right what can be put right without a change in behaviour.")
@click.option("--unsafe-fixes", is_flag=True, help="Count and make fixes too that may change behaviour.")
@click.option("--diff", is_flag=True, help="Print what --fix would change; write nothing.")
@click.option("--select", multiple=True, metavar="CODES", help="Rules to use: MP101,MP2 or ALL.")
@click.option("--ignore", multiple=True, metavar="CODES", help="Rules to leave out.")
@click.option(
    "--output-format",
    "form",
    type=click.Choice([form.value for form in Format]),
    default=Format.CONCISE.value,
    show_default=True,
    help="How findings are printed.",
)
@click.option("--json", "form", flag_value=Format.JSON.value, help="As --output-format json.")
@click.option("--target-torch", metavar="RELEASE", help="The oldest torch the code runs on, as in 2.4.")
def command(
    *,
    paths: tuple[str, ...],
    fix: bool,
    unsafe_fixes: bool,
    diff: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    form: str,
    target_torch: str | None,
) -> int:
    """Find mixed-precision mistakes in Python files and notebooks at or below PATHS.

    Nothing is run or imported. Exit status: 0 clean, 1 findings, 2 wrong usage.

    \b
    ampwise lint src/ notebooks/train.ipynb
    ampwise lint --fix src/
    ampwise lint --json src/
    ampwise explain MP101
    """  # noqa: D301 - click's mark for a block kept as it is
    rules = all_rules()
    known = [UNREADABLE.id, *(rule.info.id for rule in rules)]
    config = _config(find_config(paths, known), known, select=select, ignore=ignore, target_torch=target_torch)
    mending = Mending(allow_unsafe=unsafe_fixes, write=fix and not diff) if fix or diff else None
    with _collector_off():
        reports = list(lint_paths(paths, rules, config, mending=mending))
    if diff:
        _show_diffs(reports)
    else:
        text = render(reports, [rule.info for rule in rules], Format(form), allow_unsafe=unsafe_fixes)
        if text:
            click.echo(text)
    _say_sums(reports, mending, unsafe=unsafe_fixes)
    return int(any(report.findings or report.problem or (diff and report.fixed) for report in reports))


@contextmanager
def _collector_off() -> Generator[None]:
    """Leave the search for cycles out: syntax trees have none, and are so many objects that it takes its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _config(
    config: Config,
    known: list[str],
    *,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    target_torch: str | None,
) -> Config:
    """The settings of pyproject.toml with the options' put over them."""
    if select:
        config = replace(config, select=parse_codes(select, known, option="--select"), extend_select=())
    if ignore:
        config = replace(config, ignore=(*config.ignore, *parse_codes(ignore, known, option="--ignore")))
    if target_torch is not None:
        release = parse_release(target_torch)
        if release is None:
            shown = inert_line(target_torch, max_length=40)
            raise UsageError(f'--target-torch: "{shown}" is not a torch release; write it as in 2.4')
        config = replace(config, target_torch=release)
    return config


def _show_diffs(reports: Sequence[FileReport]) -> None:
    from difflib import unified_diff

    for report in reports:
        lines = unified_diff(
            report.before.splitlines(keepends=True),
            report.after.splitlines(keepends=True),
            fromfile=report.path,
            tofile=report.path,
        )
        text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        if text:
            click.echo(inert(text), nl=False)


def _say_sums(reports: Sequence[FileReport], mending: Mending | None, *, unsafe: bool) -> None:
    """The counts, on stderr: stdout is for the findings."""
    for report in reports:
        if report.problem is not None:
            say(report.problem)
    left = [finding for report in reports for finding in report.findings]
    num_fixed = sum(len(report.fixed) for report in reports)
    files = f"{len(reports)} file{'s' * (len(reports) != 1)}"
    if num_fixed and mending is not None:
        click.echo(f"{'fixed' if mending.write else 'would fix'} {num_fixed}", err=True)
    if not left:
        click.echo(f"nothing {'left ' * bool(num_fixed)}found in {files}", err=True)
        return
    safe = sum(is_fixable(finding, allow_unsafe=unsafe) for finding in left)
    more = sum(is_fixable(finding, allow_unsafe=True) for finding in left) - safe
    hints = [f"{safe} fixable with --fix{' --unsafe-fixes' * unsafe}"] if safe else []
    hints += [f"{more} with --unsafe-fixes"] if more else []
    found = f"{len(left)} finding{'s' * (len(left) != 1)} in {files}"
    click.echo(f"{found} ([*] {', '.join(hints)})" if hints else found, err=True)

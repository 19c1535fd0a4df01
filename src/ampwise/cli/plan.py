"""``ampwise plan``: show, check and compare plans; without a script, nothing is run and torch is not imported."""

import json
from collections.abc import Iterable
from typing import Any

import click

from ampwise._base.text import inert_line
from ampwise.cli.plan_text import diff_lines, plan_lines, preset_lines
from ampwise.plan.diff import diff as differences
from ampwise.plan.find import find_plan
from ampwise.plan.operators import cast_lists
from ampwise.plan.presets import presets
from ampwise.plan.writing import pinned, to_toml
from ampwise.records.files import to_plain

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_plan = click.argument("plan", metavar="PLAN")


@click.group("plan", short_help="Show, check and compare plans: what runs in which format.")
def command() -> None:
    """Show, check and compare plans: what a model computes in which format.

    A PLAN is a file (plan.toml), a preset (fp16-safe), a short form (p=fp32,c=bf16,o=fp32) or a format (bf16).

    \b
    ampwise plan list
    ampwise plan show --toml fp16-safe > plan.toml
    ampwise plan check plan.toml
    ampwise plan diff fp16-safe plan.toml
    """  # noqa: D301 - click's mark for a block kept as it is


@command.command("show")
@_plan
@click.option("--toml", "as_toml", is_flag=True, help="Print the plan as a file, with the cast lists' torch pinned.")
@_json_option
def show(plan: str, *, as_toml: bool, as_json: bool) -> None:
    """Show what a plan says: its formats, its cast lists and its rules."""
    found = find_plan(plan)
    if as_json:
        _print_json({"plan": to_plain(found), "pinned_torch": found.torch, "installed_torch": _installed()})
    elif as_toml:
        click.echo(to_toml(pinned(found)), nl=False)
    else:
        _print([_title(plan), *plan_lines(found)])


@command.command("check")
@_plan
@_json_option
def check(plan: str, *, as_json: bool) -> None:
    """Say what is wrong with a plan: every mistake at once; status 2 where there is one."""
    found = find_plan(plan)
    if as_json:
        _print_json({"num_rules": len(found.rules), "pinned_torch": found.torch, "installed_torch": _installed()})
        return
    num = len(found.rules)
    _print([f"{inert_line(plan)}: no mistakes; {num} rule{'s' * (num != 1)}, {found.default} elsewhere"])
    if found.torch is None and found.rules:
        _print([f'its cast lists are not pinned: torch = "{_installed()}" keeps an upgrade from changing them'])


@command.command("diff")
@click.argument("before")
@click.argument("after")
@_json_option
def diff(before: str, after: str, *, as_json: bool) -> int:
    """Show how plan AFTER differs from plan BEFORE; status 0 where they are the same, 1 where they differ."""
    found = differences(find_plan(before), find_plan(after))
    if as_json:
        _print_json(to_plain(found))
    elif found.is_empty:
        _print([f"{inert_line(before)} and {inert_line(after)} are the same plan"])
    else:
        _print([f"{inert_line(before)} -> {inert_line(after)}", *diff_lines(found)])
    return int(not found.is_empty)


@command.command("list")
@_json_option
def list_presets(*, as_json: bool) -> None:
    """List the presets, and where they are from."""
    rows = presets().values()
    if as_json:
        _print_json([to_plain(row) for row in rows])
        return
    for row in rows:
        _print(preset_lines(row))


def _title(plan: str) -> str:
    row = presets().get(plan)
    return inert_line(plan) if row is None else f"{plan}: {row.about} ({'; '.join(row.sources)})"


def _installed() -> str:
    return cast_lists().torch_version


def _print(lines: Iterable[str]) -> None:
    click.echo("\n".join(lines))


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=1, allow_nan=False))

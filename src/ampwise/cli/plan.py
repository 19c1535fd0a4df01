"""``ampwise plan``: show, check and compare plans; without a script, nothing is run and torch is not imported."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ampwise._base.errors import UsageError
from ampwise._base.text import inert_line
from ampwise.cli.completion import complete_files, complete_plans
from ampwise.cli.exits import say
from ampwise.cli.options import module_option, target_of
from ampwise.cli.plan_text import diff_lines, plan_lines, preset_lines
from ampwise.plan.diff import diff as differences
from ampwise.plan.find import find_plan
from ampwise.plan.operators import cast_lists
from ampwise.plan.pinning import outdated_pin
from ampwise.plan.plan import Plan
from ampwise.plan.presets import presets
from ampwise.plan.writing import pinned, to_toml
from ampwise.records.files import to_plain

if TYPE_CHECKING:
    from ampwise.records.layout import LayoutRecord

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_plan = click.argument("plan", metavar="PLAN", shell_complete=complete_plans)
_script = click.argument(
    "script", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT [ARGUMENTS]...]", shell_complete=complete_files
)


class _ScriptBehindDashes(click.Command):
    """A command whose last words are a script's, behind ``--``: says so where an option of the script stands before."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"No such option: {error.option_name}; a script and its options stand behind --: "
                f"ampwise plan {self.name} PLAN -- train.py {error.option_name} ...",
                ctx,
            ) from None


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


@command.command("show", short_help="Show a plan's formats, cast lists and rules.", cls=_ScriptBehindDashes)
@_plan
@_script
@module_option
@click.option("--toml", "as_toml", is_flag=True, help="Print the plan as a file, with the cast lists' torch pinned.")
@_json_option
def show(plan: str, script: tuple[str, ...], *, is_module: bool, as_toml: bool, as_json: bool) -> None:
    """Show what a plan says: its formats, its cast lists and its rules.

    With a script behind --, also what holds in each module of its models: the script makes one step in a process of
    its own, and what it saves is thrown away.

    \b
    ampwise plan show plan.toml
    ampwise plan show plan.toml -- train.py --lr 3e-4
    """  # noqa: D301 - click's mark for a block kept as it is
    found = find_plan(plan)
    if as_toml:
        _refuse_script(script)
        click.echo(to_toml(pinned(found)), nl=False)
        return
    layout = _layout(script, is_module=is_module)
    if as_json:
        _print_json({**_head(found), "plan": to_plain(found), **_at_layout(found, layout)})
        return
    _print([_title(plan), *plan_lines(found)])
    if layout is not None:
        from ampwise.cli.plan_script import format_lines, module_formats

        _print(format_lines(found, module_formats(found, layout)))
        _warn(found, layout)


@command.command("check", short_help="Say what is wrong with a plan: every mistake at once.", cls=_ScriptBehindDashes)
@_plan
@_script
@module_option
@_json_option
def check(plan: str, script: tuple[str, ...], *, is_module: bool, as_json: bool) -> int:
    """Say what is wrong with a plan: every mistake at once; status 2 where there is one.

    With a script behind --, also where the plan does not fit the script's models; status 1 where it does not.

    \b
    ampwise plan check plan.toml
    ampwise plan check plan.toml -- train.py --lr 3e-4
    """  # noqa: D301 - click's mark for a block kept as it is
    found = find_plan(plan)
    layout = _layout(script, is_module=is_module)
    if as_json:
        document = {**_head(found), **_at_layout(found, layout)}
        _print_json(document)
        return int(bool(document.get("warnings")))
    num = len(found.rules)
    _print([f"{inert_line(plan)}: no mistakes; {num} rule{'s' * (num != 1)}, {found.default} elsewhere"])
    if found.torch is None and found.rules:
        _print([f'its cast lists are not pinned: torch = "{_installed()}" keeps an upgrade from changing them'])
    outdated = outdated_pin(found)
    if outdated is not None:
        say(outdated)
    return int(layout is not None and _warn(found, layout))


@command.command("diff", short_help="Show how one plan differs from another.")
@click.argument("before", shell_complete=complete_plans)
@click.argument("after", shell_complete=complete_plans)
@_json_option
def diff(before: str, after: str, *, as_json: bool) -> int:
    """Show how plan AFTER differs from plan BEFORE; status 0 where they are the same, 1 where they differ.

    \b
    ampwise plan diff t5 plan.toml
    ampwise plan diff before.toml after.toml
    """  # noqa: D301 - click's mark for a block kept as it is
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
    """List the presets, and where they are from.

    \b
    ampwise plan list
    ampwise plan list --json
    """  # noqa: D301 - click's mark for a block kept as it is
    rows = presets().values()
    if as_json:
        _print_json([to_plain(row) for row in rows])
        return
    for row in rows:
        _print(preset_lines(row))


def _layout(script: tuple[str, ...], *, is_module: bool) -> "LayoutRecord | None":
    """The modules of the script's models; None where no script was given."""
    if not script:
        return None
    from ampwise.cli.misplaced import warn_of_misplaced
    from ampwise.cli.plan_script import layout_of
    from ampwise.cli.scripts import check_script

    target = target_of(script, is_module=is_module)
    if check_script(target, verb="plan"):
        raise click.exceptions.Exit(1)  # a syntax error, told in python's words
    warn_of_misplaced(target, click.get_current_context().command)
    return layout_of(target)


def _refuse_script(script: tuple[str, ...]) -> None:
    if script:
        raise UsageError("--toml prints the plan alone; leave the script away")


def _head(plan: Plan) -> dict[str, Any]:
    return {"num_rules": len(plan.rules), "pinned_torch": plan.torch, "installed_torch": _installed()}


def _at_layout(plan: Plan, layout: "LayoutRecord | None") -> dict[str, Any]:
    if layout is None:
        return {}
    from ampwise.cli.plan_script import misfits_with, module_formats

    return {"modules": to_plain(module_formats(plan, layout)), "warnings": list(misfits_with(plan, layout))}


def _warn(plan: Plan, layout: "LayoutRecord") -> bool:
    """Say where the plan does not fit the models, and which rules of a preset are for others; whether it does not."""
    from ampwise.cli.plan_script import idle_rules_in, misfits_with

    found = misfits_with(plan, layout)
    idle = idle_rules_in(plan, layout)
    for line in (*found, *(() if idle is None else (idle,))):
        say(line)
    return bool(found)


def _title(plan: str) -> str:
    row = presets().get(plan)
    return inert_line(plan) if row is None else f"{plan}: {row.about} ({'; '.join(row.sources)})"


def _installed() -> str:
    return cast_lists().torch_version


def _print(lines: Iterable[str]) -> None:
    click.echo("\n".join(lines))


def _print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=1, allow_nan=False))

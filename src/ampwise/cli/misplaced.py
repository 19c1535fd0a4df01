"""Finds options of ampwise's that stand behind the script: they are the script's, which may know nothing of them."""

import re
import shlex
from pathlib import Path

import click

from ampwise._base.text import inert_line
from ampwise.cli.exits import USAGE, say
from ampwise.cli.own_source import Reading, reading_of
from ampwise.runner.script import Target


def misplaced(target: Target, command: click.Command) -> str | None:
    """What to write where an option of ``command`` stands behind the script; None where none does."""
    given = _ours(target.argv, command)
    if not given:
        return None
    script = ("-m", target.module) if target.module is not None else (target.path or "",)
    behind = ("--", *script) if _has_dashes(command) else script
    return (
        f"{given[0].partition('=')[0]} stands after the script, so the script got it; if it is meant for ampwise, "
        f"write: {_path_of(command)} {inert_line(shlex.join(given))} ... {inert_line(' '.join(behind))}"
    )


def warn_of_misplaced(target: Target, command: click.Command) -> bool:
    """Say before the run that the script's own source does not know an option of ours behind it; whether it was said.

    A script that may have an option of that name, or that will itself refuse one it does not have, is left alone.
    """
    given = _ours(target.argv, command)
    if not given or not _is_unknown(given[0].partition("=")[0], reading_of(target)):
        return False
    hint = misplaced(target, command)
    if hint is not None:
        say(f"warning: {hint}")
    return True


def hint_after_refusal(target: Target, command: click.Command, failure: str | None) -> None:
    """Say it after a run that the script ended as parsers of arguments do, where the failure says so."""
    is_refusal = failure is not None and re.search(rf"(?:^|\()exit status {USAGE}\b", failure) is not None
    hint = misplaced(target, command) if is_refusal else None
    if hint is not None:
        say(hint)


def script_behind(words: tuple[str, ...]) -> Target | None:
    """The file that a launcher is to start, with its arguments; None where the words name none."""
    for place, word in enumerate(words):
        if word.endswith(".py") and Path(word).is_file():
            return Target(path=word, argv=words[place + 1 :])
    return None


def _is_unknown(name: str, reading: Reading) -> bool:
    match reading:
        case Reading(is_certain=False):
            return False
        case Reading(reads_arguments=False):
            return True
        case _:
            return not reading.mentions(name)


def _ours(argv: tuple[str, ...], command: click.Command) -> list[str]:
    """The first word that is spelled as a long option of the command, with its value if it takes one."""
    flags = {
        name: isinstance(option, click.Option) and option.is_flag
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("--")
    }
    for place, word in enumerate(argv):
        if word == "--":  # what follows is no option to anybody
            break
        name, equals, _ = word.partition("=")
        if name in flags:
            return [word] if equals or flags[name] else [*argv[place : place + 2]]
    return []


def _has_dashes(command: click.Command) -> bool:
    """Whether the script stands behind ``--``, as in ``ampwise plan show``."""
    return any(isinstance(one, click.Argument) and one.name == "plan" for one in command.params)


def _path_of(command: click.Command) -> str:
    context = click.get_current_context(silent=True)
    return f"ampwise {command.name}" if context is None else context.command_path

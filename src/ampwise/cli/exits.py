"""Gives every end of a command its exit status, and every refusal its line."""

import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable
from typing import Any

import click

from ampwise._base.errors import AmpwiseError
from ampwise._base.text import inert

USAGE, COULD_NOT_RUN, INTERRUPTED = 2, 3, 130


def status_of(command: Callable[[], Any]) -> int:
    """Run ``command``; the status it returned, or that of its refusal, which is printed to stderr."""
    try:
        result = command()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        return _show_click(error)
    except AmpwiseError as error:
        say(str(error))
        return error.exit_status
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        say("this command needs torch, which is not installed here; run: pip install torch")
        return COULD_NOT_RUN
    return result if isinstance(result, int) else 0


def say(text: str) -> None:
    """Print a line of ampwise's own to stderr: whole in a pipe, broken between words on a terminal."""
    line = f"ampwise: {inert(text)}"
    click.echo(fitted(line, width=shutil.get_terminal_size().columns) if sys.stderr.isatty() else line, err=True)


def fitted(text: str, *, width: int) -> str:
    """``text`` in lines of at most ``width`` columns, the further ones indented; no word, path or name is broken."""
    return "\n".join(
        textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )


def has_syntax_error(source: str | bytes, path: str) -> bool:
    """Whether python would not compile the script; its message, which names no line of ampwise's, is then printed."""
    try:
        compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        click.echo("".join(traceback.format_exception_only(error)), nl=False, err=True)
        return True
    return False


def _show_click(error: click.ClickException) -> int:
    """Print click's complaints, in ampwise's form; the help that a command without arguments prints is no complaint."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USAGE
    say(error.format_message())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"Try: {error.ctx.command_path} --help", err=True)
    return USAGE if isinstance(error, click.UsageError) else COULD_NOT_RUN

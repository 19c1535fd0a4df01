"""What the commands that run a script share: options that mean the same in each, and the script itself."""

from typing import Any

import click

from ampwise.cli.completion import complete_files
from ampwise.runner.script import Target
from ampwise.runner.spec import Lists, Malloc

module_option = click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
lists_option = click.option(
    "--lists",
    type=click.Choice([one.value for one in Lists]),
    default=Lists.CUDA.value,
    help="Whose cast lists autocast follows: CUDA's on every device (default), or torch's own.",
)
nvtx_option = click.option("--nvtx", is_flag=True, help="Mark steps, modules and casts for Nsight Systems (CUDA).")
script_words = click.argument(
    "words",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="SCRIPT [ARGUMENTS]...",
    shell_complete=complete_files,
)


def malloc_option(text: str) -> Any:
    """``--malloc``, with what it means to the command as its help."""
    names = [one.value for one in Malloc]
    return click.option("--malloc", type=click.Choice(names), default=Malloc.AUTO.value, help=text)


def target_of(words: tuple[str, ...], *, is_module: bool) -> Target:
    """The script that the words after the options name, with its arguments."""
    name, argv = words[0], words[1:]
    return Target(module=name, argv=argv) if is_module else Target(path=name, argv=argv)

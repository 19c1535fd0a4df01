"""The ``ampwise`` command: finds the file of the command that was asked for, and imports only that."""

from importlib import import_module
from typing import Any
from warnings import filterwarnings

import click

from ampwise._base.version import __version__

_COMMANDS = {
    "run": "Run a training script, unmodified, in mixed precision.",
    "compare": "Run a script in several precisions; show what each gained.",
    "estimate": "Predict the GPU memory of a training step, without a GPU.",
    "tune": "Find which modules must stay in fp32; write a plan.",
    "doctor": "Say why a training gives NaN, no speed-up or no memory.",
    "lint": "Find mixed-precision mistakes in source, without running it.",
    "plan": "Show, check and compare plans: what runs in which format.",
    "casts": "Show what a script computes in which format, and its casts.",
    "report": "Render a saved recording again.",
    "info": "Say what this machine can do and which precision to use.",
    "explain": "Explain a format, a number in each format, or an operator.",
}


class LazyCommands(click.Group):
    """A group that knows its commands by name and imports a command's file only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order a newcomer meets them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None lets click say that there is none."""
        if cmd_name not in _COMMANDS:
            return None
        return import_module(f"ampwise.cli.{cmd_name}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add to click's refusal the command that was probably meant."""
        from ampwise._base.suggest import not_one_of

        name = args[0]
        if name not in _COMMANDS:
            hint = f"; to run a script: ampwise run {name}" if name.endswith(".py") else ""
            raise click.UsageError(not_one_of(name, _COMMANDS, kind="command") + hint, ctx)
        if name != "run":  # where it is what python would print; nothing of ours needs NumPy
            filterwarnings("ignore", "Failed to initialize NumPy")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing their files."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Options of ampwise stand before the script; everything after it is the script's.",
)
@click.version_option(__version__, prog_name="ampwise")
def commands() -> None:
    """Mixed-precision training of PyTorch models: right, fast and explained.

    \b
    ampwise run train.py --lr 3e-4
    ampwise compare --precision fp32,auto train.py
    ampwise info
    """  # noqa: D301 - click's mark for a block kept as it is


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    from ampwise.cli.exits import status_of

    arguments: dict[str, Any] = {"args": argv, "prog_name": "ampwise", "standalone_mode": False}
    return status_of(lambda: commands.main(**arguments))

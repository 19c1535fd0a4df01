"""What every command keeps, asked of click's tree: help with an example that fits 80 columns, and --json."""

from collections.abc import Iterator

import click
import pytest

from ampwise.cli.main import commands


def tree(group: click.Group = commands, path: str = "ampwise") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with what is typed to reach it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from tree(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


ALL = dict(tree())
every = pytest.mark.parametrize("path", ALL)


@every
def test_its_help_teaches_with_an_example_and_fits_80_columns(path: str) -> None:
    context = click.Context(ALL[path], info_name=path, max_content_width=80, terminal_width=80)
    text = ALL[path].get_help(context)
    usage, _, rest = text.partition("\n")
    assert usage.startswith(f"Usage: {path}")
    assert path in rest, "an example that can be typed"
    assert max(map(len, text.splitlines())) <= 80


@every
def test_it_speaks_to_programs(path: str) -> None:
    names = {name for option in ALL[path].params for name in option.opts}
    assert "--json" in names


@every
def test_every_option_says_what_it_is_for(path: str) -> None:
    options = [one for one in ALL[path].params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []
    text = ALL[path].get_help(click.Context(ALL[path], info_name=path))
    assert "default: (" not in text, "click puts a text of our own in brackets: write it into the help"
    assert " RANGE" not in text


@pytest.mark.parametrize("path", sorted({path.rpartition(" ")[0] for path in ALL}))
def test_a_list_of_commands_cuts_no_sentence_off(path: str) -> None:
    group = commands if path == "ampwise" else commands.get_command(click.Context(commands), path.split()[1])
    assert isinstance(group, click.Group)
    text = group.get_help(click.Context(group, info_name=path, terminal_width=80))
    assert "..." not in text.partition("\n\nCommands:")[2], "give a short_help"

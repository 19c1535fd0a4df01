import warnings
from importlib import import_module

import click
import pytest

from ampwise.cli import main as cli


@pytest.mark.parametrize("name", list(cli._COMMANDS))
def test_every_command_of_the_table_has_its_file(name):
    assert isinstance(import_module(f"ampwise.cli.{name}").command, click.Command)


def test_help_lists_the_commands_and_where_options_stand(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli._COMMANDS)
    assert "before the script" in out


def test_a_misspelt_command_is_suggested(capsys):
    assert cli.main(["comapre"]) == 2
    assert 'did you mean "compare"?' in capsys.readouterr().err


def test_a_script_without_a_command_is_told_to_run(capsys):
    assert cli.main(["train.py"]) == 2
    assert "ampwise run train.py" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "is_told"), [("explain", False), ("run", True)])
def test_a_numpy_that_torch_misses_is_no_matter_but_to_scripts(monkeypatch, command, is_told):
    def warn(*_):
        warnings.warn("Failed to initialize NumPy: No module named 'numpy'", stacklevel=1)

    monkeypatch.setattr(import_module(f"ampwise.cli.{command}").command, "invoke", warn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert cli.main([command, "fp16"]) == 0
    assert bool(told) == is_told


def test_every_message_fits_80_columns_in_help(capsys):
    for name in cli._COMMANDS:
        assert cli.main([name, "--help"]) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


SUBCOMMANDS = ["plan show", "plan check", "plan diff", "plan list"]


@pytest.mark.parametrize("name", [*cli._COMMANDS, *SUBCOMMANDS])
def test_every_help_teaches_with_an_example(name, capsys):
    assert cli.main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert any(line.startswith(f"  ampwise {name} ") or line == f"  ampwise {name}" for line in out.splitlines())
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("name", [*(name for name in cli._COMMANDS if name != "plan"), *SUBCOMMANDS])
def test_every_command_can_print_json(name, capsys):
    assert cli.main([*name.split(), "--help"]) == 0
    assert "--json " in capsys.readouterr().out


@pytest.mark.parametrize("name", [*cli._COMMANDS, *SUBCOMMANDS])
def test_the_examples_of_a_help_are_commands(name, capsys):
    assert cli.main([*name.split(), "--help"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ampwise ")]
    for words in lines:
        found, rest = cli.commands, words[1:]
        while isinstance(found, click.Group):
            found, rest = found.get_command(click.Context(found), rest[0]), rest[1:]
        found.make_parser(click.Context(found, **found.context_settings)).parse_args(rest)

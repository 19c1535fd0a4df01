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


def test_every_message_fits_80_columns_in_help(capsys):
    for name in cli._COMMANDS:
        assert cli.main([name, "--help"]) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())

import click
import pytest

from ampwise._base.errors import CannotRunError, RecordError, UsageError
from ampwise.cli.exits import fitted, say, status_of


def raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("no"), 2),
        (CannotRunError("no"), 3),
        (RecordError("no"), 3),
        (click.UsageError("no"), 2),
        (click.BadParameter("no"), 2),
        (click.ClickException("no"), 3),
        (click.FileError("no"), 3),
    ],
)
def test_each_refusal_has_its_status_and_one_line(error, status, capsys):
    assert status_of(raising(error)) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ampwise: ")
    assert err.count("\n") == 1


def test_other_ends_say_nothing(capsys):
    assert status_of(raising(click.exceptions.Exit(4))) == 4
    assert status_of(raising(click.Abort())) == 130
    assert status_of(lambda: 7) == 7
    assert status_of(lambda: None) == 0
    assert capsys.readouterr() == ("", "")


def test_a_usage_error_points_to_the_help(capsys):
    @click.command(name="run")
    def command():
        pass

    context = click.Context(command, info_name="run")
    assert status_of(raising(click.UsageError("no such option", context))) == 2
    assert capsys.readouterr().err == "ampwise: no such option\nTry: run --help\n"


def test_a_fault_of_ampwises_own_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        status_of(raising(ZeroDivisionError()))


def test_torch_that_is_not_installed_is_told_in_one_line(capsys):
    assert status_of(raising(ModuleNotFoundError("No module named 'torch'", name="torch"))) == 3
    assert capsys.readouterr().err == (
        "ampwise: this command needs torch, which is not installed here; run: pip install torch\n"
    )
    with pytest.raises(ModuleNotFoundError):
        status_of(raising(ModuleNotFoundError("No module named 'nupmy'", name="nupmy")))


def test_what_is_said_is_inert(capsys):
    say("a\x1b[31mb")
    assert capsys.readouterr().err == "ampwise: ab\n"


def test_a_line_is_broken_between_words_and_only_there():
    path = "/a/very/long/path-of-somebody's/" + "x" * 40
    text = f"ampwise: cannot write {path}: the folder does not exist\nand --precision fp32 more words follow here"
    lines = fitted(text, width=40).split("\n")
    assert " ".join(line.strip() for line in lines) == text.replace("\n", " ")
    assert all(len(line) <= 40 or path in line for line in lines)
    assert lines[1].startswith("  ")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_refusal_is_one_line_in_a_pipe_and_fits_a_terminal(is_terminal, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    say("word " * 30)
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines) > 1) == is_terminal
    assert all(len(line) <= 60 for line in lines) == is_terminal

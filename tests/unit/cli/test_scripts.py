import io
import sys

from ampwise.cli.scripts import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stderr, *, has_lines=False):
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress_bar(has_lines=has_lines) as show:
        show("fp32, run 1", 0, 10)
        show("fp32, run 1", 5, 10)
        show("bf16, run 1", 0, None)
    return stderr.getvalue()


def test_a_bar_vanishes_in_a_pipe(monkeypatch):
    assert shown(monkeypatch, io.StringIO()) == ""


def test_a_pipe_is_told_what_begins_where_it_is_asked_for(monkeypatch):
    assert shown(monkeypatch, io.StringIO(), has_lines=True) == "ampwise: fp32, run 1\nampwise: bf16, run 1\n"


def test_a_terminal_sees_a_bar_that_is_gone_at_the_end(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text = shown(monkeypatch, Terminal())
    assert "run 1" in text
    assert text.rstrip("\n").endswith("\x1b[2K")  # the line is erased


def test_no_color_leaves_the_colours_out(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[3" in shown(monkeypatch, Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown(monkeypatch, Terminal())

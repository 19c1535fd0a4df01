"""The page that ``ampwise report`` writes beside a recording without being asked."""

from pathlib import Path

import pytest

from ampwise._base.errors import UsageError
from ampwise.cli.report import _page

UNWRITABLE = Path("/proc/run.html")


def test_a_folder_where_nothing_can_be_written_costs_the_page_alone(tmp_path, capsys):
    assert _page({"output": None}, (tmp_path / "run.json",), default=UNWRITABLE) is None
    said = capsys.readouterr().err
    assert said.startswith("ampwise: no page is written: cannot write /proc/run.html: ")
    assert said.endswith(", with -o\n")


def test_a_page_that_was_asked_for_is_refused_there(tmp_path):
    with pytest.raises(UsageError, match=r"cannot write /proc/run\.html"):
        _page({"output": UNWRITABLE}, (tmp_path / "run.json",), default=None)

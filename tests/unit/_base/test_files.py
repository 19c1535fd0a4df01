import os

import pytest

from ampwise._base.errors import UsageError
from ampwise._base.files import check_writable, write_atomically


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_an_interrupt_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "record.json", "new")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named_with_the_remedy(tmp_path):
    with pytest.raises(UsageError, match="does not exist; create it"):
        write_atomically(tmp_path / "none" / "record.json", "x")
    with pytest.raises(UsageError, match="does not exist; create it"):
        check_writable(tmp_path / "none" / "record.json")


def test_a_folder_is_no_place_to_write_to(tmp_path):
    with pytest.raises(UsageError, match="it is a folder"):
        check_writable(tmp_path)


def test_checking_leaves_nothing(tmp_path):
    check_writable(tmp_path / "record.json")
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_has_the_mode_an_ordinary_open_gives(tmp_path):
    (tmp_path / "plain").write_text("x")
    write_atomically(tmp_path / "ours", "x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode

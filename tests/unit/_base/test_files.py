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


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "record.json"
    link.symlink_to(tmp_path / "there" / "real.json")
    for content in ("one", "two"):
        check_writable(link)
        write_atomically(link, content)
        assert link.is_symlink()
        assert (tmp_path / "there" / "real.json").read_text() == content


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]

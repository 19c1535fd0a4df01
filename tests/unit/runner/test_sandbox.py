import io
import os
import pickle
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import safetensors.torch
import torch

from ampwise.runner.sandbox import Sandbox, redirect_saves


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def scratch(home, tmp_path):
    with redirect_saves(str(tmp_path / "scratch"), folder=str(home)):
        yield tmp_path / "scratch"


def put(path, content):
    """Write past the redirection."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, content)
    os.close(descriptor)


def get(path):
    descriptor = os.open(path, os.O_RDONLY)
    content = os.read(descriptor, 100)
    os.close(descriptor)
    return content


STATE = {"a": torch.arange(3.0)}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("best.pt", "best.pt"),
        ("runs/../best.pt", "best.pt"),
        ("runs/1/a.pt", "runs/1/a.pt"),
        ("{home}/a.pt", "a.pt"),
        ("/data/a.pt", "elsewhere/data/a.pt"),
        ("../a.pt", "elsewhere{parent}/a.pt"),
        ("{scratch}/a.pt", "a.pt"),
    ],
)
def test_a_path_has_one_place_in_the_scratch_folder(path, expected, home, tmp_path):
    place = Sandbox(str(tmp_path / "scratch"), folder=str(home))
    given = path.format(home=home, scratch=tmp_path / "scratch")
    assert place.redirected(given) == str(tmp_path / "scratch" / expected.format(parent=home.parent))


@pytest.mark.parametrize("kind", [str, Path])
def test_nobodys_best_is_overwritten_and_what_was_saved_is_found_again(kind, scratch, home):
    put(home / "best.pt", b"the user's")
    torch.save(STATE, kind("best.pt"))
    assert get(home / "best.pt") == b"the user's"
    assert torch.equal(torch.load(kind("best.pt"))["a"], STATE["a"])
    assert torch.equal(torch.load(f=kind(home / "best.pt"))["a"], STATE["a"])
    assert (scratch / "best.pt").exists()


def test_the_users_own_file_is_read_where_the_run_saved_none(scratch, home, tmp_path):
    with open(home / "mine.bin", "wb") as file:
        torch.save(STATE, file)
    assert torch.equal(torch.load("mine.bin")["a"], STATE["a"])


def test_keywords_folders_and_buffers(scratch, home):
    torch.save(obj=STATE, f="deep/er/a.pt")
    assert (scratch / "deep" / "er" / "a.pt").exists()
    buffer = io.BytesIO()
    torch.save(STATE, buffer)
    assert buffer.tell() > 0
    assert list(home.iterdir()) == []


def test_an_open_file_of_a_checkpoint_is_redirected_and_of_anything_else_is_not(scratch, home):
    for name in ("a.pt", "b.ckpt", "log.txt"):
        with open(name, "wb") as file:
            pickle.dump(3, file)
        with Path(name).open("rb") as file:
            assert pickle.load(file) == 3
    assert [path.name for path in home.iterdir()] == ["log.txt"]
    with open(file="log.txt", mode="a") as file:
        assert file.write("x") == 1


def test_safetensors_and_torchscript(scratch, home):
    safetensors.torch.save_file(STATE, "a.safetensors")
    assert torch.equal(safetensors.torch.load_file("a.safetensors")["a"], STATE["a"])
    assert sorted(path.name for path in scratch.iterdir()) == ["a.safetensors"]
    assert list(home.iterdir()) == []


def test_a_checkpoint_written_beside_and_moved_into_place(scratch, home):
    put(home / "best.pt", b"the user's")
    for move in (os.replace, os.rename, shutil.move, lambda a, b: Path(a).rename(b)):
        torch.save(STATE, "best.pt.tmp")
        assert os.path.exists("best.pt.tmp")
        move("best.pt.tmp", "best.pt")
        assert torch.equal(torch.load("best.pt")["a"], STATE["a"])
        os.remove("best.pt")
    assert sorted(os.listdir(home)) == ["best.pt"]
    assert get(home / "best.pt") == b"the user's"


def test_a_copy_of_a_checkpoint_is_one(scratch, home):
    torch.save(STATE, "last.pt")
    for copy in (shutil.copyfile, shutil.copy, shutil.copy2):
        copy("last.pt", "best.pt")
        assert Path("best.pt").exists()
        assert Path("best.pt").is_file()
        assert os.path.getsize("best.pt") == os.path.getsize(scratch / "last.pt")
        Path("best.pt").unlink()
        assert not os.path.isfile("best.pt")
    assert os.listdir(home) == []


def test_a_checkpoint_written_to_a_temporary_file_and_moved_into_place(scratch, home, tmp_path):
    put(home / "last.ckpt", b"the user's")
    put(tmp_path / "temporary", b"the run's")
    shutil.move(str(tmp_path / "temporary"), str(home / "last.ckpt"))  # as fsspec commits, and so Lightning saves
    os.chmod(home / "last.ckpt", 0o600)
    assert get(home / "last.ckpt") == b"the user's"
    assert get(scratch / "last.ckpt") == b"the run's"


def test_files_of_the_users_are_moved_and_copied_as_ever(scratch, home):
    (home / "a.txt").write_text("a")
    shutil.copy("a.txt", "b.txt")
    os.replace("b.txt", "c.txt")
    Path("c.txt").unlink()
    np.save("d.npy", np.ones(2))
    assert sorted(os.listdir(home)) == ["a.txt", "d.npy"]
    assert not list(scratch.iterdir())


def test_another_process_finds_what_this_one_saved(scratch, home, tmp_path):
    torch.save(STATE, "a.pt")
    assert Sandbox(str(tmp_path / "scratch"), folder=str(home)).for_reading("a.pt") == str(scratch / "a.pt")


def test_tensorboards_writer_is_sent_to_the_scratch_folder_when_it_is_imported(home, tmp_path, monkeypatch):
    (tmp_path / "lib" / "tensorboardX").mkdir(parents=True)
    (tmp_path / "lib" / "tensorboardX" / "__init__.py").write_text("from .writer import SummaryWriter")
    (tmp_path / "lib" / "tensorboardX" / "writer.py").write_text(
        "class SummaryWriter:\n    def __init__(self, logdir=None, comment=''):\n        self.where = logdir\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "lib")
    with redirect_saves(str(tmp_path / "scratch"), folder=str(home)):
        from tensorboardX import SummaryWriter as Writer

        assert Writer().where == str(tmp_path / "scratch" / "runs")
        assert Writer("logs/1").where == str(tmp_path / "scratch" / "logs" / "1")
        assert Writer(logdir="logs").where == str(tmp_path / "scratch" / "logs")
    assert Writer("logs").where == "logs"
    for name in ("tensorboardX", "tensorboardX.writer"):
        assert isinstance(sys.modules.pop(name), ModuleType)


def test_descriptors_and_bytes_pass_through(scratch, home):
    (home / "a").write_text("x")
    descriptor = os.open("a", os.O_RDONLY)
    with open(descriptor) as file:
        assert file.read() == "x"
    assert os.path.exists(b"a")
    assert not os.path.exists("a\0b")


def test_all_that_is_newly_written_at_home_may_lie_elsewhere(home, tmp_path):
    put("data.bin", b"data")
    put("train.log", b"old")
    outside = tmp_path / "outside.txt"
    with redirect_saves(str(tmp_path / "scratch"), folder=str(home), everything=True):
        with open("train.log", "w") as file:  # what users write
            file.write("new")
        (home / "config.json").write_text("{}")
        assert (home / "config.json").read_text() == "{}"
        assert (home / "train.log").read_text() == "new"
        with open("data.bin", "r+b") as file:  # numpy.memmap's own mode, mostly to read
            assert file.read() == b"data"
        outside.write_text("kept")
    assert outside.read_text() == "kept"
    assert get("train.log") == b"old"
    assert sorted(os.listdir(home)) == ["data.bin", "train.log"]

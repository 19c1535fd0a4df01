"""Full disks, read-only places, damaged and malicious files: clear errors, nothing lost, nothing executed."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from ampwise import load_checkpoint, save_checkpoint
from ampwise._base.errors import RecordError, UsageError
from ampwise.plan.file import load_plan
from ampwise.records.files import load_recording, save_recording
from damage import flips, meaningless_share
from warm import python

LIMIT = 64 * 1024


def run(code, *, cwd):
    """Run Python under a limit of ``LIMIT`` bytes a file, as on a disk that is full from there on."""
    head = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))\n"
    done = python("-c", head + code, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_checkpoint_that_the_disk_has_no_room_for_costs_nothing(tmp_path):
    said = run(
        """
import torch, ampwise
small, large = torch.nn.Linear(4, 4), torch.nn.Linear(400, 400)
ampwise.save_checkpoint("a.ckpt", model=small, extra={"kept": 1})
try:
    ampwise.save_checkpoint("a.ckpt", model=large)
except ValueError as error:
    print(type(error).__name__, error)
print(ampwise.load_checkpoint("a.ckpt", model=small))
""",
        cwd=tmp_path,
    )
    assert re.match(r"UsageError cannot write the checkpoint a.ckpt: .*; what was there is as it was", said)
    assert said.splitlines()[-1] == "{'kept': 1}"
    assert [one.name for one in tmp_path.iterdir()] == ["a.ckpt"]


def test_a_recording_that_the_disk_has_no_room_for_costs_nothing(tmp_path, made):
    save_recording(made.normal(), tmp_path / "a.json")
    before = (tmp_path / "a.json").read_bytes()
    said = run(
        f"""
from ampwise._base.files import write_atomically
try:
    write_atomically("a.json", "x" * {2 * LIMIT})
except ValueError as error:
    print(type(error).__name__, error)
""",
        cwd=tmp_path,
    )
    assert said == "UsageError cannot write a.json: File too large; name a place you may write to\n"
    assert (tmp_path / "a.json").read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a file system that refuses root too")
def test_a_place_that_cannot_be_written_is_named(made):
    with pytest.raises(UsageError, match=r"cannot write the checkpoint /sys/kernel/a.ckpt"):
        save_checkpoint("/sys/kernel/a.ckpt", model=torch.nn.Linear(1, 1))
    with pytest.raises(UsageError, match=r"cannot write /sys/kernel/a.json: Permission denied|Read-only"):
        save_recording(made.normal(), "/sys/kernel/a.json")


# ------------------------------------------------------------------ flipped bits


def test_60_flipped_bits_are_told_or_harmless(tmp_path):
    told, harmless = flips(tmp_path, 60, 0)
    assert told + harmless == 60
    assert told > 20


@pytest.mark.slow
def test_1000_flipped_bits_are_told_or_harmless(tmp_path):
    told, harmless = flips(tmp_path, 1000, 1)
    assert told + harmless == 1000
    # what a zip holds beside the entries' content is checked by nothing, because nothing depends on it
    assert harmless / 1000 < meaningless_share(tmp_path / "a.ckpt") + 0.05


# ------------------------------------------------------------------ malicious files


class Evil:
    """Its pickle runs code when it is loaded."""

    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.fixture
def evil(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": "ampwise checkpoint", "version": 1, "step": Evil()}, "evil")
    yield Path("evil")
    assert not Path("ran").exists()


def test_no_reader_runs_what_a_pickle_holds(evil):
    with pytest.raises(RecordError, match="damaged"):
        load_checkpoint(evil, model=torch.nn.Linear(1, 1))
    with pytest.raises(RecordError):
        load_recording(evil)
    with pytest.raises(UsageError):
        load_plan(evil)
    torch.load(evil, weights_only=False)  # it does run where it is let
    assert Path("ran").exists()
    Path("ran").unlink()


@pytest.mark.parametrize("command", [("report", "evil"), ("plan", "check", "evil"), ("run", "--plan", "evil", "t.py")])
def test_no_command_runs_what_a_pickle_holds(evil, command):
    Path("t.py").write_text("print('ran the script')")
    done = python("-m", "ampwise", *command, cwd=evil.parent)
    assert done.returncode in {2, 3}, done.stderr
    assert "Traceback" not in done.stderr


def test_a_record_with_code_in_its_texts_is_text(tmp_path, made):
    save_recording(made.normal(), tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    document["__class__"] = {"py/object": "os.system", "args": ["touch ran"]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(RecordError, match="__class__"):
        load_recording(tmp_path / "a.json")

"""Damaged, malicious and half-written checkpoints of shards: refused with a reason, on every rank, nothing executed."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ampwise import TrainStep, load_sharded_checkpoint, save_sharded_checkpoint
from ampwise._base.errors import RecordError, UsageError
from ampwise.runtime.saving.shard_files import digests_of_all
from damage import shard_flips

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.distributed is disabled.*")


def trained(width=3):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, width))
    step = TrainStep(torch.optim.Adam(model.parameters()), modules=[model], precision="fp32")
    step(model(torch.ones(1, 2)).sum())
    return step


@pytest.fixture
def place(tmp_path):
    save_sharded_checkpoint(tmp_path / "one", step=trained(), extra={"epoch": 3})
    return tmp_path / "one"


def refusal(place):
    step = trained()
    before = repr(step.state_dict()) + repr(step.modules[0].state_dict())
    with pytest.raises(RecordError) as refused:
        load_sharded_checkpoint(place, step=step)
    assert repr(step.state_dict()) + repr(step.modules[0].state_dict()) == before
    return str(refused.value)


def test_60_flipped_bits_are_told_or_lie_where_nothing_is(tmp_path):
    told, harmless = shard_flips(tmp_path, 60, 0)
    assert told + len(harmless) == 60
    assert set(harmless) <= {"ampwise"}  # between the entries of the header's zip


@pytest.mark.slow
def test_1000_flipped_bits_are_told_or_lie_where_nothing_is(tmp_path):
    told, harmless = shard_flips(tmp_path, 1_000, 1)
    assert told + len(harmless) == 1_000
    assert set(harmless) <= {"ampwise"}


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_file_that_is_cut_off_or_gone_is_named(place, name):
    whole = (place / name).read_bytes()
    (place / name).write_bytes(whole[: len(whole) // 2])
    said = refusal(place)
    (place / name).unlink()
    gone = refusal(place)
    assert f"{name} is damaged: its checksum is not that of its content. Nothing was loaded" in said
    assert name in gone
    assert "No such file" in gone


def test_a_newer_version_is_refused(place):
    header = torch.load(place / "ampwise", weights_only=True)
    torch.save({**header, "version": 99}, place / "ampwise")
    assert "is a checkpoint of version 99; this ampwise reads 1: update ampwise" in refusal(place)


class Malicious:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("name", [".metadata", "ampwise", "__0_0.distcp"])
def test_no_code_of_any_file_is_run(place, name, capsys, monkeypatch):
    if name == "ampwise":
        torch.save({"format": "ampwise checkpoint", "version": 1, "extra": Malicious()}, place / name)
    else:
        (place / name).write_bytes(pickle.dumps(Malicious()))
    # somebody who writes a malicious file writes its checksum too
    from ampwise.runtime.saving import sharded_checkpoint

    monkeypatch.setattr(sharded_checkpoint, "damaged", lambda *_: iter(()))
    monkeypatch.setattr(sharded_checkpoint, "fault_of_index", lambda *_: None)
    with pytest.raises(RecordError):
        load_sharded_checkpoint(place, step=trained())
    assert capsys.readouterr().out == ""


def test_the_header_names_no_file_outside_of_the_folder(place, tmp_path):
    from ampwise.runtime.saving.shard_files import damaged

    (tmp_path / "secret").write_bytes(b"1")
    digests, _ = digests_of_all(place)
    assert list(damaged(place, digests)) == []
    outside = {"../secret": digests[".metadata"]}
    assert list(damaged(place, outside)) == ["../secret is damaged: its checksum is not that of its content"]


def test_a_disk_without_room_costs_nothing(tmp_path):
    code = """
import resource, torch, ampwise
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
def made(width):
    model = torch.nn.Linear(width, width)
    return ampwise.TrainStep(torch.optim.SGD(model.parameters(), lr=0.1), modules=[model], precision="fp32")
ampwise.save_sharded_checkpoint("a", step=made(4), extra={"kept": 1})
try:
    ampwise.save_sharded_checkpoint("a", step=made(400))
except ValueError as error:
    print(type(error).__name__, error)
try:
    ampwise.save_checkpoint("b", step=made(400))
except ValueError as error:
    print(type(error).__name__, error)
print(ampwise.load_sharded_checkpoint("a", step=made(4)))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    reason = r".*\(torch could not go on writing, with .* free there: is the disk or a quota full\?\); what"
    sharded, whole, kept = done.stdout.splitlines()
    assert re.match(f"UsageError cannot write the checkpoint: rank 0: {reason}", sharded)
    assert re.match(f"UsageError cannot write the checkpoint b: {reason}", whole)
    assert kept == "{'kept': 1}"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_link_goes_on_naming_where_the_checkpoints_lie(tmp_path):
    (tmp_path / "large disk").mkdir()
    link, place = tmp_path / "checkpoint", tmp_path / "large disk" / "one"
    link.symlink_to(place)
    for epoch in range(3):
        save_sharded_checkpoint(link, step=trained(), extra={"epoch": epoch})
        assert link.is_symlink()
        assert [load_sharded_checkpoint(one, step=trained())["epoch"] for one in (link, place)] == [epoch] * 2
    assert sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint", "large disk"]
    assert [one.name for one in place.parent.iterdir()] == ["one"]


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a file system that refuses root too")
def test_a_place_that_cannot_be_written_is_named():
    with pytest.raises(UsageError, match=r"cannot write the checkpoint: .*/sys/kernel/.a.part"):
        save_sharded_checkpoint("/sys/kernel/a", step=trained())

"""Training goes on from a checkpoint bit for bit; what is damaged or foreign is refused and changes nothing."""

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from ampwise import TrainStep, load_checkpoint, save_checkpoint
from ampwise._base.errors import RecordError, UsageError
from ampwise.runtime.saving.full_disk import explained
from ampwise.runtime.scaling.loss_scale import DynamicLossScale


class Run:
    """A loop with everything that has a state: dropout, BatchNorm, momenta, a schedule, a scale that overflows."""

    def __init__(self, precision="fp16", *, seed=0, hysteresis=1):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - what scripts use
        self.model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
        )
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        scale = DynamicLossScale(scale=2.0**21, growth_interval=3, hysteresis=hysteresis)
        self.step = TrainStep(
            optimizer,
            modules=self.model,
            schedulers=torch.optim.lr_scheduler.StepLR(optimizer, step_size=2),
            precision=precision,
            loss_scale=scale if precision == "fp16" else None,
            clip_grad_norm=1.0,
        )
        self.skipped = []

    def train(self, num_steps):
        for _ in range(num_steps):
            x = torch.randn(4, 3) * random.random() + float(np.random.rand())  # noqa: NPY002 - as above
            with self.step.autocast():
                loss = self.model(x).pow(2).mean()
            self.skipped.append(self.step(loss).skipped)
        return self

    def everything(self):
        model = {name: value.tolist() for name, value in self.model.state_dict().items()}
        return model, str(self.step.state_dict()), random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002 - as above


@pytest.mark.parametrize("hysteresis", [1, 3])
def test_a_resumed_run_is_the_run_that_never_stopped_at_any_step(tmp_path, hysteresis):
    whole = Run(hysteresis=hysteresis).train(12)
    assert True in whole.skipped
    assert False in whole.skipped
    expected = whole.everything()
    for stop in range(1, 12):
        stopped = Run(hysteresis=hysteresis).train(stop)
        save_checkpoint(tmp_path / "a.ckpt", step=stopped.step, extra={"stop": stop})
        assert stopped.train(12 - stop).everything() == expected, "saving changed the run"
        resumed = Run(seed=99, hysteresis=hysteresis)
        assert load_checkpoint(tmp_path / "a.ckpt", step=resumed.step) == {"stop": stop}
        assert resumed.train(12 - stop).everything() == expected


@pytest.mark.parametrize(("before", "after"), [("fp32", "fp16"), ("fp16", "fp32"), ("fp16", "bf16")])
def test_a_run_without_a_loss_scale_goes_on_with_one_and_the_other_way_round(tmp_path, before, after):
    save_checkpoint(tmp_path / "a", step=Run(before).train(4).step)
    run = Run(after, seed=1)
    load_checkpoint(tmp_path / "a", step=run.step)
    assert run.train(2).step.precision == after


def test_torchs_own_reader_reads_it(tmp_path):
    run = Run().train(2)
    save_checkpoint(tmp_path / "a", model=run.model, extra={"epoch": 3})
    document = torch.load(tmp_path / "a", weights_only=True)
    run.model.load_state_dict(document["model"][0])
    assert document["extra"] == {"epoch": 3}


def test_a_model_alone_is_loaded_from_a_whole_checkpoint(tmp_path):
    run, other = Run().train(3), Run(seed=5)
    save_checkpoint(tmp_path / "a", step=run.step)
    load_checkpoint(tmp_path / "a", model=other.model)
    assert torch.equal(other.model[0].weight, run.model[0].weight)


def test_extra_of_every_plain_kind_comes_back(tmp_path):
    extra = {
        "number": 1.5,
        "nan": float("inf"),
        "big": 2**80,
        "bytes": b"\x00\xff",
        "none": None,
        "nested": [(1, "a"), {2: True}],
        "kinds": [torch.bfloat16, torch.device("cpu"), torch.Size([2])],
        "counter": Counter("aab"),
        "tensors": [torch.ones(2, dtype=torch.bfloat16), torch.tensor(3), torch.ones(0), torch.ones(2, 3).t()],
        "complex": torch.ones(2, dtype=torch.complex64).conj(),
    }
    save_checkpoint(tmp_path / "a", model=torch.nn.Linear(1, 1), extra=extra)
    loaded = load_checkpoint(tmp_path / "a")
    assert str(loaded) == str(extra)


# ------------------------------------------------------------------ what is refused


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a.ckpt"
    save_checkpoint(path, step=Run().train(1).step)
    return path


def untouched(path, match):
    """Loading ``path`` is refused and leaves the run as it was."""
    run = Run(seed=3)
    before, drawn = str(run.step.state_dict()) + str(run.model.state_dict()), torch.get_rng_state()
    with pytest.raises(RecordError, match=match):
        load_checkpoint(path, step=run.step)
    assert str(run.step.state_dict()) + str(run.model.state_dict()) == before
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_truncated_file_is_refused_wherever_it_is_cut(saved):
    content = saved.read_bytes()
    for length in [0, 1, 100, *range(len(content) // 12, len(content), len(content) // 12), len(content) - 1]:
        saved.write_bytes(content[:length])
        untouched(saved, "damaged")


def test_a_damaged_byte_never_passes(saved):
    content = saved.read_bytes()
    expected = str(torch.load(saved, weights_only=True))
    picks = random.Random(0)
    for place in [picks.randrange(len(content)) for _ in range(40)]:
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        saved.write_bytes(damaged)
        try:
            load_checkpoint(saved, step=Run().step)
        except RecordError:
            continue
        assert str(torch.load(saved, weights_only=True)) == expected, "only bytes that mean nothing may differ"


def test_a_changed_tensor_fails_the_checksum(saved):
    document = torch.load(saved, weights_only=True)
    document["model"][0]["0.weight"][0, 0] += 1e-7
    torch.save(document, saved)
    untouched(saved, "checksum")


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "a"
    torch.save({"model": {}, "scaler": torch.amp.GradScaler("cpu").state_dict()}, path)
    untouched(path, "no checkpoint of ampwise's.*scaler.load_state_dict")
    path.write_text("hello")
    untouched(path, "no checkpoint or a damaged one")
    untouched(tmp_path / "b", "there is no checkpoint")
    untouched(tmp_path, r"is a folder, and save_checkpoint\(\) writes a file; the folders of save_sharded_checkpoint")


def test_a_file_that_runs_code_is_refused(tmp_path, capfd):
    class Evil:
        def __reduce__(self):
            return print, ("ran",)

    torch.save({"format": "ampwise checkpoint", "extra": Evil()}, tmp_path / "a")
    untouched(tmp_path / "a", "damaged")
    assert "ran" not in capfd.readouterr().out


def test_a_newer_file_is_refused(saved):
    document = torch.load(saved, weights_only=True)
    torch.save({**document, "version": 2}, saved)
    untouched(saved, "version 2; this ampwise reads 1: update ampwise")


def test_parts_that_do_not_fit_are_named_and_nothing_is_loaded(saved, tmp_path):
    run = Run(seed=3)
    other = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
    before = other[0].weight.clone()
    with pytest.raises(RecordError, match=r"Sequential has no 1.running_mean.*nothing was loaded"):
        load_checkpoint(saved, model=other)
    with pytest.raises(RecordError, match=r"0.weight has shape \(4, 3\) in it, \(3, 3\) in Sequential"):
        load_checkpoint(saved, model=torch.nn.Sequential(torch.nn.Linear(3, 3), *Run().model[1:]))
    assert torch.equal(other[0].weight, before)
    with pytest.raises(RecordError, match="holds 1 models, 2 are given"):
        load_checkpoint(saved, model=[other, other])
    save_checkpoint(tmp_path / "b", model=run.model)
    with pytest.raises(RecordError, match="saved without step="):
        load_checkpoint(tmp_path / "b", step=run.step)
    one = TrainStep(torch.optim.AdamW(list(run.model.parameters())[:2]), precision="fp32")
    with pytest.raises(RecordError, match="has 0"):
        load_checkpoint(saved, step=one)
    scheduler = torch.optim.lr_scheduler.StepLR(one.optimizers[0], step_size=2)
    fewer = TrainStep(one.optimizers, schedulers=scheduler, precision="fp32")
    with pytest.raises(RecordError, match=r"groups of \[2\] parameters, the state of \[6\]"):
        load_checkpoint(saved, step=fewer)


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ({"best": np.float64(0.5)}, r"extra\['best'\] is a numpy.float64"),
        ({"a": [1, {"b": object()}]}, r"extra\['a'\]\[1\]\['b'\] is a builtins.object"),
        ({"s": torch.ones(2).to_sparse()}, r"extra\['s'\] is a torch.Tensor"),
        ({(1, frozenset()): 1}, r"a key of extra\[1\] is a builtins.frozenset"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(saved, extra, place):
    before = saved.read_bytes()
    with pytest.raises(UsageError, match=place):
        save_checkpoint(saved, model=torch.nn.Linear(1, 1), extra=extra)
    assert saved.read_bytes() == before


def test_nothing_to_save_and_half_a_window_are_refused(tmp_path):
    with pytest.raises(UsageError, match="nothing to save"):
        save_checkpoint(tmp_path / "a", extra={"epoch": 1})
    weight = torch.nn.Parameter(torch.ones(1))
    step = TrainStep(torch.optim.SGD([weight], lr=0.1), accumulation_steps=2, precision="fp32")
    step(weight.sum())
    with pytest.raises(UsageError, match="1 of 2 losses"):
        save_checkpoint(tmp_path / "a", step=step)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ writing


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("disk"), KeyboardInterrupt()])
def test_a_save_that_fails_leaves_the_one_before_and_no_rest(saved, monkeypatch, error):
    before = saved.read_bytes()

    def fail(document, name):
        Path(name).write_bytes(b"half")
        raise error

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UsageError):
        save_checkpoint(saved, step=Run().step)
    assert saved.read_bytes() == before
    assert [one.name for one in saved.parent.iterdir()] == [saved.name]


def test_a_disk_without_room_is_told_where_torch_does_not_say_it(tmp_path):
    short = "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"
    told = explained(short, tmp_path)
    assert re.fullmatch(r".* \(torch could not go on writing, with [\d.]+ .?i?B free there: is the disk .*\)", told)
    assert "with an unknown number of bytes free there" in explained(short, tmp_path / "gone")
    assert explained("[Errno 13] Permission denied", tmp_path) == "[Errno 13] Permission denied"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        save_checkpoint(tmp_path / "nowhere" / "a", step=Run().step)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_process_killed_while_it_saves_leaves_the_checkpoint_before(saved):
    script = f"""
import os, signal, torch, ampwise
def fsync(number):
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
ampwise.save_checkpoint({str(saved)!r}, model=torch.nn.Linear(1, 1))
"""
    before = saved.read_bytes()
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert saved.read_bytes() == before
    load_checkpoint(saved, step=Run().step)

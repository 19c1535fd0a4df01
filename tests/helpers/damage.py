"""Flips bits of a checkpoint, and counts what was told: ``damage.py FOLDER NUM_FLIPS SEED [--shards]``."""

import json
import random
import sys
import zipfile
from pathlib import Path

import torch

from ampwise import TrainStep, load_checkpoint, load_sharded_checkpoint, save_checkpoint, save_sharded_checkpoint
from ampwise._base.errors import RecordError


def saved(folder):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
    step = TrainStep(torch.optim.AdamW(model.parameters()), modules=model, precision="fp16")
    with step.autocast():
        loss = model(torch.ones(2, 8)).mean()
    step(loss)
    save_checkpoint(folder / "a.ckpt", step=step, extra={"epoch": 3})
    return step


def flips(folder, num_flips, seed):
    """How many of ``num_flips`` single flipped bits were told, and how many left every number as it was."""
    step = saved(folder)
    content = (folder / "a.ckpt").read_bytes()
    state = repr(step.state_dict()) + repr(step.modules[0].state_dict())
    draw, told, harmless = random.Random(seed), [], 0
    for _ in range(num_flips):
        damaged = bytearray(content)
        damaged[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        (folder / "b.ckpt").write_bytes(damaged)
        try:
            extra = load_checkpoint(folder / "b.ckpt", step=step)
        except RecordError as error:
            told.append(str(error))
        else:
            assert extra == {"epoch": 3}
            harmless += 1
        assert repr(step.state_dict()) + repr(step.modules[0].state_dict()) == state
    assert all(one.endswith("othing was loaded") for one in told)
    return len(told), harmless


def shard_flips(folder, num_flips, seed):
    """The same of a sharded checkpoint: a flip in any of its files, each as often as it is long."""
    step = saved(folder)
    place = folder / "shards"
    save_sharded_checkpoint(place, step=step, extra={"epoch": 3})
    content = {one: one.read_bytes() for one in sorted(place.iterdir())}
    lengths = [len(one) for one in content.values()]
    state = repr(step.state_dict()) + repr(step.modules[0].state_dict())
    draw, told, harmless = random.Random(seed), [], []
    for _ in range(num_flips):
        (file,) = draw.choices(list(content), weights=lengths)
        damaged = bytearray(content[file])
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        try:
            extra = load_sharded_checkpoint(place, step=step)
        except RecordError as error:
            told.append(str(error))
        else:
            assert extra == {"epoch": 3}
            harmless.append(file.name)
        assert repr(step.state_dict()) + repr(step.modules[0].state_dict()) == state
        file.write_bytes(content[file])
    assert all(one.endswith("Nothing was loaded") for one in told)
    return len(told), harmless


def meaningless_share(path):
    """The share of a checkpoint's bytes that hold nothing: padding, dates and the like between the zip's entries."""
    with zipfile.ZipFile(path) as archive:
        held = sum(one.file_size for one in archive.infolist())
    return 1 - held / path.stat().st_size


if __name__ == "__main__":
    folder, num_flips, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    told, harmless = shard_flips(folder, num_flips, seed) if "--shards" in sys.argv else flips(folder, num_flips, seed)
    sys.stdout.write(json.dumps([told, harmless if isinstance(harmless, int) else len(harmless)]))

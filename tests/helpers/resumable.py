"""Trains in processes that are killed, resumes in others, and writes how each ended: ``resumable.py FOLDER PLACES``.

PLACES is a list of numbers in JSON: at which place of the loop a process kills itself. There are several in every step:
after a forward pass, after a step, while the checkpoint is written, after it. Children are forked, so torch is
imported once.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import torch

from ampwise import TrainStep, load_checkpoint, save_checkpoint
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

NUM_BATCHES, WINDOW = 21, 2
OVERFLOWS = {8, 15}
_TIMEOUT_S = 120


class Killer:
    """Counts the places and kills the process at one of them."""

    def __init__(self, place):
        self.place, self.num_passed = place, 0

    def pass_by(self):
        self.num_passed += 1
        if self.num_passed == self.place:
            os.kill(os.getpid(), signal.SIGKILL)


def run():
    """A loop's objects: dropout, BatchNorm, two optimizers, schedules, a scale that overflows at first."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what scripts use
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.4), torch.nn.Linear(5, 1)
    )
    optimizers = [
        torch.optim.AdamW(model[0].parameters(), lr=0.05),
        torch.optim.SGD([*model[1].parameters(), *model[3].parameters()], lr=0.05, momentum=0.9),
    ]
    step = TrainStep(
        optimizers,
        modules=model,
        schedulers=[
            torch.optim.lr_scheduler.StepLR(optimizers[0], step_size=2),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[1], T_max=5),
        ],
        precision="fp16",
        clip_grad_norm=0.5,
        accumulation_steps=WINDOW,
        loss_scale=DynamicLossScale(scale=2.0**17, growth_interval=2),
    )
    return model, step


def train(path, place=None):
    """Train from the checkpoint, if there is one, to the end, saving after every step."""
    killer = Killer(place)
    fsync = os.fsync
    os.fsync = lambda number: (fsync(number), killer.pass_by())
    model, step = run()
    first = load_checkpoint(path, step=step)["batches"] if path.exists() else 0
    for index in range(first, NUM_BATCHES):
        x = torch.randn(4, 3) * random.random() + float(np.random.rand())  # noqa: NPY002 - as above
        with step.autocast():
            loss = model(x * (float("inf") if index in OVERFLOWS else 1.0)).pow(2).mean()
        killer.pass_by()
        result = step(loss, last=index == NUM_BATCHES - 1)
        killer.pass_by()
        if result.is_update:
            save_checkpoint(path, step=step, extra={"batches": index + 1, "skipped": result.skipped})
            killer.pass_by()
    everything = [step.state_dict(), model.state_dict(), random.random(), np.random.rand(), torch.rand(3)]  # noqa: NPY002 - as above
    return killer.num_passed, repr(everything)


def forked(work):
    """What ``work`` returns in a process of its own; None if that was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_TIMEOUT_S)
        os.close(reader)
        with os.fdopen(writer, "w") as file:
            file.write(json.dumps(work()))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    return json.loads(said)


def main(folder, places):
    torch.set_num_threads(1)
    torch.set_printoptions(precision=10, threshold=10**6)
    num_places, expected = forked(lambda: train(folder / "whole"))
    ends = []
    for place in places:
        path = folder / f"{place}"
        first = forked(lambda path=path, place=place: train(path, 1 + (place - 1) % num_places))
        saved = torch.load(path, weights_only=True)["extra"] if path.exists() else None
        resumed = forked(lambda path=path: train(path))
        ends.append(
            {
                "place": place,
                "killed": first is None,
                "saved": saved,
                "same": resumed[1] == expected,
                "num_left": _rest(folder, path.name),
            }
        )
    sys.stdout.write(json.dumps({"places": num_places, "ends": ends}))


def _rest(folder, name):
    return sum(one.name.startswith(f".{name}.") for one in folder.iterdir())


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

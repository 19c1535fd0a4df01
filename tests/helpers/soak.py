"""Trains for long under everything that goes wrong, and writes what was left: ``soak.py NUM_STEPS SEED``.

Batches overflow, hold NaN or are empty; learning rates change; parameter groups come and go, with new layers; windows
end early. Two halves are compared: what grows with the steps is a leak.
"""

import gc
import json
import random
import resource
import sys
import threading
from pathlib import Path

import torch

from ampwise import TrainStep
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

MIN_SCALE, MAX_SCALE = 2.0**-4, 2.0**20


class Grower(torch.nn.Module):
    """A small net, one part of which is replaced from time to time."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.last = torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


def counted():
    """Live tensors, open files and threads."""
    gc.collect()
    tensors = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
    return tensors, len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def batch_of(kind):
    if kind == "empty":
        return torch.randn(0, 4)
    x = torch.randn(5, 4)
    if kind == "overflow":
        x[0, 0] = 3e38
    if kind == "nan":
        x[1, 2] = float("nan")
    return x


def change(draw, model, optimizer):
    """Change what users change while training."""
    what = draw.choice(["rate", "group", "freeze"])
    if what == "rate":
        for group in optimizer.param_groups:
            group["lr"] = 10 ** draw.uniform(-4, -1)
    elif what == "group":
        old = set(model.last.parameters())
        model.last = torch.nn.Linear(6, 1)
        optimizer.param_groups[:] = [one for one in optimizer.param_groups if not old & set(one["params"])]
        for one in old:
            optimizer.state.pop(one, None)
        optimizer.add_param_group({"params": list(model.last.parameters())})
    else:
        bias = model.first.bias
        bias.requires_grad_(not bias.requires_grad)
        bias.grad = None


def main(num_steps, seed):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    draw = random.Random(seed)
    model = Grower()
    optimizer = torch.optim.AdamW(
        [{"params": [*model.first.parameters(), *model.norm.parameters()]}, {"params": list(model.last.parameters())}],
        lr=0.01,
    )
    step = TrainStep(
        optimizer,
        modules=model,
        precision="fp16",
        clip_grad_norm=1.0,
        accumulation_steps=2,
        loss_scale=DynamicLossScale(scale=2.0**10, growth_interval=3, min_scale=MIN_SCALE, max_scale=MAX_SCALE),
    )
    kinds = ["usual"] * 90 + ["overflow"] * 6 + ["nan"] * 2 + ["empty"] * 2
    scales, skipped, half, late_bytes = [], 0, None, 0
    was_bad = False
    for index in range(num_steps):
        kind = "usual" if was_bad else draw.choice(kinds)  # bad batches in a row are no accidents, and refused
        was_bad = kind != "usual"
        if kind == "empty":  # as where a filter left nothing of a last batch: its mean is NaN, so users pass it over
            with step.autocast():
                model.eval()(batch_of(kind))
            model.train()
            continue
        result = None
        while result is None or not result.is_update:
            with step.autocast():
                loss = model(batch_of(kind)).float().pow(2).mean()
            result, kind = step(loss, last=draw.random() < 0.3), "usual"
        skipped += bool(result.skipped)
        scales.append(result.scale)
        if draw.random() < 0.01:
            change(draw, model, optimizer)
        if index == num_steps // 2:
            half, late_bytes = counted(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    end = counted()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - late_bytes
    finite = all(bool(one.isfinite().all()) for one in (*model.parameters(), *model.buffers()))
    report = {
        "steps": len(scales),
        "skipped": skipped,
        "scale": [min(scales), max(scales)],
        "finite": finite,
        "half": half,
        "end": end,
        "grown_bytes": grown,
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

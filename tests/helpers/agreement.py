"""Trains a small net under torchrun by DDP and by FSDP2, with infinities on single ranks: ``agreement.py DEVICE_TYPE``.

The first rank prints what all came to as JSON: which steps were skipped, and whether parameters and scales are equal.
"""

import json
import os
import random
import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ampwise import TrainStep
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

NUM_STEPS = 30


def train(model, device, bad):
    step = TrainStep(
        torch.optim.AdamW(model.parameters(), lr=0.01),
        modules=model,
        precision="fp16",
        clip_grad_norm=1.0,
        loss_scale=DynamicLossScale(scale=2.0**8, growth_interval=5),
    )
    skipped = []
    for index in range(NUM_STEPS):
        torch.manual_seed(1000 * index + dist.get_rank())
        x = torch.randn(4, 8, device=device)
        with step.autocast():
            loss = model(x).float().pow(2).mean()
        if bad.get(index) == dist.get_rank():
            loss = loss * float("inf")
        skipped.append(bool(step(loss).skipped))
    values = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    return [skipped, step.scaler.get_scale(), torch.cat([one.detach().flatten() for one in values]).tolist()]


def main(device_type):
    if device_type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    device = torch.device(device_type)
    dice = random.Random(0)
    bad = {index: dice.randrange(dist.get_world_size()) for index in range(NUM_STEPS) if dice.random() < 0.2}
    found = {"bad": sorted(bad)}
    for name in ("ddp", "fsdp2"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        if name == "ddp":
            model = DistributedDataParallel(model)
        else:
            fully_shard(model, mesh=init_device_mesh(device_type, (dist.get_world_size(),)))
        mine = train(model, device, bad)
        all_of_them = [None] * dist.get_world_size()
        dist.all_gather_object(all_of_them, mine)
        found[name] = {
            "skipped": [index for index, one in enumerate(mine[0]) if one],
            "agree": all(one == mine for one in all_of_them),
            "finite": all(torch.tensor(mine[2]).isfinite().tolist()),
        }
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])

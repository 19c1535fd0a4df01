"""Trains shards on ranks that save them together after every step, one of which is killed while it writes.

``elastic_shards.py FOLDER NUM_RANKS NUM_STEPS KILLS``: KILLS is a list of ``[rank, place]`` in JSON; the place counts
the files that the rank has written. The ranks are forks; after each kill they start again from the checkpoint.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ampwise import TrainStep, load_sharded_checkpoint, save_sharded_checkpoint
from ampwise.runtime.scaling.loss_scale import DynamicLossScale
from elastic import launch


def train(arguments, **group):
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("num_steps", type=int)
    parser.add_argument("--kill", type=int, nargs=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", **group)
    rank, place = dist.get_rank(), options.folder / "shards"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scale = DynamicLossScale(scale=2.0**12, growth_interval=2)
    step = TrainStep(optimizer, modules=[model], precision="fp32", loss_scale=scale, clip_grad_norm=0.5)
    torch.manual_seed(rank)
    is_there = any((one / "ampwise").exists() for one in (place, place.with_name(".shards.old")))
    first = load_sharded_checkpoint(place, step=step)["steps"] if is_there else 0
    if options.kill and options.kill[0] == rank:
        _die_at(options.kill[1])
    for index in range(first, options.num_steps):
        with step.autocast():
            loss = model(torch.randn(4, 4)).pow(2).mean()
        step(loss)
        save_sharded_checkpoint(place, step=step, extra={"steps": index + 1})
    values = [param.full_tensor().tolist() for param in model.parameters()]
    end = {"first": first, "trained": [values, step.scaler.get_scale(), torch.rand(3).tolist()]}
    (options.folder / f"end{rank}").write_text(json.dumps(end))
    dist.destroy_process_group()


def _die_at(place):
    written, fsync = [], os.fsync

    def counted(number):
        fsync(number)
        written.append(number)
        if len(written) == place:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = counted


def main(folder, num_ranks, num_steps, kills):
    found = []
    for name, kill in [("whole", None), *((f"killed{rank}at{place}", (rank, place)) for rank, place in kills)]:
        place = folder / name
        statuses = [launch(num_ranks, place, num_steps, "--kill", *kill, train=train)] if kill else []
        statuses.append(launch(num_ranks, place, num_steps, train=train))
        ends = [json.loads((place / f"end{rank}").read_text()) for rank in range(num_ranks)]
        left = sorted(one.name for one in place.iterdir() if not one.name.startswith("end"))
        found.append({"statuses": statuses, "ends": ends, "left": left})
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))

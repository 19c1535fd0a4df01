"""Trains under torchrun, saves after every step, and goes on from the newest checkpoint that every rank has.

``elastic.py FOLDER NUM_STEPS [--kill RANK STEP] [--preempt RANK STEP]``: at its first start the rank kills itself in
that step, or is sent SIGTERM in it. The end of every rank is written to ``FOLDER/end<rank>``. ``launch`` starts the
ranks without torchrun, as forks of a process that has imported torch.
"""

import argparse
import json
import os
import random
import signal
import traceback
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

from ampwise import TrainStep, load_checkpoint, save_checkpoint
from ampwise.runtime.scaling.loss_scale import DynamicLossScale

OVERFLOWS = {3, 9}
_TIMEOUT_S = 300


def newest(folder, num_ranks):
    """The last step that every rank has saved; 0 if there is none."""
    names = {one.name for one in folder.glob("step*.rank*")}
    steps = {int(name.partition(".")[0][4:]) for name in names}
    return max((n for n in steps if all(f"step{n}.rank{r}" in names for r in range(num_ranks))), default=0)


def main(arguments=None, **group):
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("num_steps", type=int)
    parser.add_argument("--kill", type=int, nargs=2)
    parser.add_argument("--preempt", type=int, nargs=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.set_printoptions(precision=10, threshold=10**6)
    dist.init_process_group("gloo", **group)
    rank, folder = dist.get_rank(), options.folder
    is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    torch.manual_seed(rank)
    random.seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Dropout(0.4), torch.nn.Linear(5, 1))
    for one in model.parameters():
        dist.broadcast(one.data, 0)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    at = 0

    def save():
        save_checkpoint(folder / f"step{at + 1}.rank{rank}", step=step, extra={"steps": at + 1})

    step = TrainStep(
        torch.optim.AdamW(model.parameters(), lr=0.05),
        modules=model,
        precision="fp16",
        clip_grad_norm=0.5,
        loss_scale=DynamicLossScale(scale=2.0**12, growth_interval=2),
        on_preemption=save if options.preempt else None,
    )
    first = newest(folder, dist.get_world_size())
    if first:
        load_checkpoint(folder / f"step{first}.rank{rank}", step=step)
    for at in range(first, options.num_steps):
        x = torch.randn(4, 3) * random.random()
        has_overflow = at in OVERFLOWS and rank == at % dist.get_world_size()
        with step.autocast():
            loss = wrapped(x * float("inf") if has_overflow else x).pow(2).mean()
        if is_first and [rank, at] == options.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if is_first and [rank, at] == options.preempt:
            os.kill(os.getpid(), signal.SIGTERM)
        step(loss)
        if not options.preempt:
            save()
            (folder / f"step{at - 1}.rank{rank}").unlink(missing_ok=True)
    trained = repr([step.state_dict(), model.state_dict()])
    (folder / f"end{rank}").write_text(
        json.dumps({"trained": trained, "random": [random.random(), *torch.rand(3).tolist()]})
    )
    dist.destroy_process_group()


def launch(num_ranks, folder, *arguments, train=main):
    """The statuses of the ranks that trained as forks of this process; a signal's is negative."""
    folder.mkdir(exist_ok=True)
    meeting = folder.with_suffix(".store")
    meeting.unlink(missing_ok=True)
    children = []
    for rank in range(num_ranks):
        child = os.fork()
        if not child:
            signal.alarm(_TIMEOUT_S)
            status = 1
            try:
                train(
                    [str(folder), *map(str, arguments)],
                    init_method=f"file://{meeting}",
                    rank=rank,
                    world_size=num_ranks,
                    timeout=timedelta(seconds=60),
                )
                status = 0
            except SystemExit as left:
                status = left.code
            except BaseException:  # noqa: BLE001 - a fork ends here, whatever it is
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    main()

"""A scheduler in several processes that train together: each returns what its rank did."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from adapting import Blocks
from ampwise import GradNormSpike, LossSpike, NonFinite, PrecisionScheduler, UnderflowShare

INF = float("inf")


def _trained(model, inner, bad, triggers):
    """Four steps; one rank's batch is bad in the second."""
    with PrecisionScheduler(model, "bf16", triggers=triggers) as scheduler:
        for index in range(4):
            x = torch.ones(2, 4) * (1.0 + dist.get_rank())
            if index == 1 and dist.get_rank() == 1:
                x = x * bad
            loss = model(x).square().mean()
            loss.backward()
            scheduler.step(loss)
            inner.zero_grad()
        history = getattr(scheduler._state.triggers[-1], "losses", ())
        return {"moves": [(one.step, one.group) for one in scheduler.switches], "losses": list(history)}


def one_rank_loses_numbers():
    model = Blocks()
    return _trained(DistributedDataParallel(model), model, INF, [NonFinite(), GradNormSpike(), LossSpike()])


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Blocks()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _trained(model, model, INF, [NonFinite(), GradNormSpike()])


def tensor_parallel():
    """Modules that are given parts and give parts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Blocks()
    parts = {"inp": ColwiseParallel(output_layouts=Replicate())}
    for place in range(len(model.blocks)):
        parts |= {f"blocks.{place}.wi": ColwiseParallel(), f"blocks.{place}.wo": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), parts)
    return _trained(model, model, INF, [NonFinite(), UnderflowShare(format="fp8_e4m3")])


def one_rank_spikes():
    """A loss that one rank alone sees moves all groups, and down again in portions, after a checkpoint too."""
    model = Blocks()
    ddp = DistributedDataParallel(model)
    state, moves = None, []
    for steps in (range(30), range(30, 60)):
        options = {"triggers": [LossSpike(in_a_row=2)], "quiet": 6, "cool_down": 2}
        with PrecisionScheduler(ddp, "bf16", **options) as scheduler:
            if state is not None:
                scheduler.load_state_dict(state)
            for index in steps:
                loss = ddp(torch.ones(2, 4)).square().mean() * 0.0 + 1.0 + 0.01 * (index % 3)
                if dist.get_rank() == 1 and index in {14, 15}:
                    loss = loss + 9.0
                loss.backward()
                scheduler.step(loss)
                model.zero_grad()
            state = scheduler.state_dict()
            moves += [(one.step, one.group) for one in scheduler.switches]
    return {"moves": moves}


CASES = ("one_rank_loses_numbers", "sharded", "tensor_parallel", "one_rank_spikes")

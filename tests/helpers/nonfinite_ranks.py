"""The watch for infinities in several processes, of which one alone is alarmed: each returns what its rank recorded."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ampwise.instruments.nonfinite import NonFiniteWatch
from ampwise.observe.events import EventBus
from ampwise.observe.loop import LoopWatcher

INF = float("inf")


class Square(nn.Module):
    def forward(self, x):
        return x * x


class Mean(nn.Module):
    """Agrees with the other processes in its forward pass, as SyncBatchNorm does."""

    def forward(self, x):
        mean = x.detach().mean()
        dist.all_reduce(mean)
        return x - mean


def _net(*parts):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *parts, nn.Linear(4, 1))


def _watched(model, inner, *, batch=1.0, term=INF):
    """Five steps; in the second one process alone has another batch, or a term in its loss that has no gradient."""
    bus = EventBus()
    optimizer = torch.optim.SGD(inner.parameters(), lr=1e-6)
    with LoopWatcher(bus, has_optimizer=True), NonFiniteWatch(bus) as watch:
        for index in range(5):
            is_bad = index == 1 and dist.get_rank() == 1
            loss = model(torch.full((2, 4), batch if is_bad else 1.0)).mean() + (term if is_bad else 0.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        record = watch.record()
    return {
        "loss_steps": record.loss_steps,
        "replayed": record.replayed_steps,
        "origins": [[one.site.module, one.site.op] for one in record.origins if one.site.op],
        "note": record.note,
    }


def data_parallel():
    inner = _net(Square())
    return _watched(DistributedDataParallel(inner), inner)


def a_batch_beyond_fp32():
    inner = _net(Square())
    return _watched(DistributedDataParallel(inner), inner, batch=1e30, term=0.0)


def parallel_within():
    inner = _net(Square(), nn.BatchNorm1d(4))
    return _watched(nn.Sequential(DistributedDataParallel(inner), nn.Identity()), inner)


def talking():
    inner = _net(Square(), Mean())
    return _watched(DistributedDataParallel(inner), inner)


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    inner = _net(Square())
    fully_shard(inner, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return _watched(inner, inner)


CASES = ["data_parallel", "a_batch_beyond_fp32", "parallel_within", "talking", "sharded"]

"""One process of several: what DistributedDataParallel and FSDP2 hold beside the model, counted by hand."""

import sys

import pytest
import torch
from torch import nn

from ampwise.records.memory import MemoryCategory as Kind
from imagining import imagining, processes

dist = torch.distributed
WIDTH, DEPTH = 512, 4
LAYER = WIDTH * WIDTH * 4
"""Bytes of a layer's weights in fp32; there are no biases."""


def model():
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)]).cuda()


def steps(net, num=3):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(num):
        net(torch.randn(8, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        yield
        optimizer.zero_grad()


def held(imagination, kind):
    whereabouts, ledger = imagination.whereabouts, imagination.ledger
    return sum(one.num_bytes for one in ledger.alive() if whereabouts.known.get(one.born) is kind)


@pytest.mark.parametrize("is_view", [False, True])
def test_the_buckets_of_ddp_are_as_large_as_the_gradients(is_view):
    with processes(4) as imagination:
        net = nn.parallel.DistributedDataParallel(model(), device_ids=[0], gradient_as_bucket_view=is_view)
        found = [held(imagination, Kind.GRADIENT) for _ in steps(net)]
        parameters = held(imagination, Kind.PARAMETER)
    # the gradients are views of the buckets, or stand beside them; the second pass makes the buckets anew
    assert found == [DEPTH * LAYER * (1 if is_view else 2)] * 3
    assert parameters == DEPTH * LAYER


def test_fsdp_holds_a_share_and_gathers_a_layer_at_a_time():
    from torch.distributed.fsdp import fully_shard

    with processes(4) as imagination:
        net = model()
        for layer in net:
            fully_shard(layer)
        fully_shard(net)
        allocator = imagination.ledger.allocator
        assert allocator.allocated_bytes == DEPTH * LAYER // 4
        first = next(net.parameters())
        assert first.device == torch.device("cuda", 0)
        assert first.to_local().shape == (WIDTH // 4, WIDTH)
        for _ in steps(net):
            assert held(imagination, Kind.PARAMETER) == held(imagination, Kind.GRADIENT) == DEPTH * LAYER // 4
        allocator.peak_allocated_bytes = allocator.allocated_bytes
        with torch.no_grad():
            net(torch.randn(8, WIDTH, device="cuda"))
        # beside the shares: the layer that computes, and the next one that is being gathered, each with its buffer
        gathered = allocator.peak_allocated_bytes - allocator.allocated_bytes
        assert 2 * LAYER <= gathered <= 4 * LAYER + 2**17


def test_what_processes_tell_each_other_is_what_this_one_has():
    with processes(2) as imagination:
        assert (dist.get_rank(), dist.get_world_size(), torch.cuda.device_count()) == (0, 2, 2)
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        dist.barrier()
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x)
        dist.all_reduce(torch.ones(3))
        counts = torch.tensor([3, 4]).cuda()
        dist.broadcast(counts, src=0)
        assert counts.tolist() == [3, 4]
        objects = [None, None]
        dist.all_gather_object(objects, {"loss": 1})
        assert objects == [{"loss": 1}] * 2
        received = [None]
        dist.scatter_object_list(received, [5, 6])
        assert received == [5]
        dist.new_group([0], backend="gloo")
        assert any("one process of 2" in text for text in imagination.notes.texts)


def test_spawned_processes_are_one_that_runs_here():
    seen = []

    def main(rank, world_size):
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
        seen.append((dist.get_rank(), dist.get_world_size()))
        dist.destroy_process_group()

    hook = sys.excepthook
    try:
        with imagining() as imagination:
            torch.multiprocessing.spawn(main, args=(3,), nprocs=3)
    finally:
        sys.excepthook = hook
    assert seen == [(0, 3)]
    assert any("--world-size" in text for text in imagination.notes.texts)

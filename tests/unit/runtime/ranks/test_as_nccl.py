"""What ranks send each other is what NCCL takes: seen on an imaginary GPU whose group refuses all else."""

import re
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ampwise import TrainStep, compress_gradients, joinable
from ampwise.compat import collectives
from ampwise.runtime.scaling.loss_scale import DynamicLossScale
from ampwise.runtime.step.preemption import Preemption
from imagining import processes

DTYPES = {
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
}
"""``ncclDataType`` in torch/csrc/distributed/c10d/NCCLUtils.cpp, without fp8, which older GPUs do not reduce."""
TENSORS = ("all_reduce", "all_to_all_single", "all_gather_single")


class RefusalError(AssertionError):
    """What NCCL would refuse."""


@pytest.fixture
def sent(monkeypatch):
    """What was sent, each by the function's name; what NCCL refuses raises."""
    found = []

    def checking(name):
        original = getattr(dist, name)

        def call(*args, **kwargs):
            tensors = [one for one in args if isinstance(one, torch.Tensor)]
            for one in tensors:
                if one.device.type != "cuda":
                    raise RefusalError(f"No backend type associated with device type {one.device.type}")
                if one.dtype not in DTYPES or not one.is_contiguous() or one.is_sparse:
                    raise RefusalError(f"{name} of {one.dtype}, contiguous: {one.is_contiguous()}")
            operation = next((one for one in args if isinstance(one, dist.ReduceOp.RedOpType)), dist.ReduceOp.SUM)
            if operation in {dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR}:
                raise RefusalError(f"Cannot use {operation} with NCCL")
            found.append((name, *(str(one.dtype) for one in tensors)))
            return original(*args, **kwargs)

        return call

    for name in TENSORS:
        monkeypatch.setattr(dist, name, checking(name))
    group = SimpleNamespace(_device_types=[torch.device("cuda")])
    monkeypatch.setattr(collectives, "_world", lambda _: group)
    return found


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def trained(model, *, precision="bf16", num_steps=2, **options):
    step = TrainStep(
        torch.optim.AdamW(model.parameters()), modules=[model], precision=precision, clip_grad_norm=1.0, **options
    )
    for _ in range(num_steps):
        with step.autocast():
            loss = model(torch.randn(4, 8, device="cuda")).float().square().mean()
        step(loss)
    return step


def reductions(sent):
    """FSDP2 gathers layers besides."""
    return sum(name == "all_reduce" for name, *_ in sent)


def test_the_group_refuses_what_lies_on_the_host(sent):
    with processes(2), pytest.raises(RefusalError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("scale", [None, DynamicLossScale(), "headroom"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_steps(sent, kind, scale):
    with processes(2):
        model = net().cuda()
        model = DistributedDataParallel(model, device_ids=[0]) if kind == "ddp" else fully_shard(model)
        trained(model, precision="fp32", loss_scale=scale)
    # the scales at the start; where gradients are shards all else in one reduction a step, the largest in another
    expected = {"ddp": 1, "fsdp": 3 if scale != "headroom" else 5}
    assert reductions(sent) == expected[kind]


def test_shards_that_lie_on_the_host_are_agreed_on_where_the_group_can(sent):
    with processes(2):
        model = fully_shard(net().cuda(), offload_policy=CPUOffloadPolicy(pin_memory=False))
        step = trained(model, precision="fp32", loss_scale=16.0, num_steps=1)
        assert step.preparation.device.type == "cpu"
    assert reductions(sent) == 2


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_word_of_sigterm(sent, place):
    with processes(2):
        watch = Preemption(torch.device(place))
        try:
            assert not watch.leaves_now()
        finally:
            watch.close()
    assert sent == [("all_reduce", "torch.int32")]


def test_the_state_of_who_came_last_is_sent_from_the_host(sent, monkeypatch):
    states = []
    with processes(2):
        model = DistributedDataParallel(net().cuda(), device_ids=[0])
        step = trained(model)
        hook = joinable(step).join_hook()
        monkeypatch.setattr("ampwise.runtime.step.uneven.broadcast", lambda state, **_: states.append(state) or state)
        hook.main_hook()
        hook.post_hook(is_last_joiner=True)
    tensors = [one for state in states[0]["optimizers"][0]["state"].values() for one in state.values()]
    assert tensors
    assert {one.device.type for one in tensors} == {"cpu"}
    assert sent[-1] == ("all_reduce", "torch.int64")


@pytest.mark.parametrize("sum_in", ["fp32", "wire"])
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_gradients_in_16_bits(sent, name, sum_in, monkeypatch):
    hooks = []
    with processes(4):
        model = DistributedDataParallel(net().cuda(), device_ids=[0])
        monkeypatch.setattr(model, "register_comm_hook", lambda *given: hooks.append(given))
        compress_gradients(model, name, sum_in=sum_in)
        ((state, hook),) = hooks
        bucket = SimpleNamespace(buffer=lambda: torch.randn(1001, device="cuda"))
        hook(state, bucket)
    dtype = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[name]
    called = {"fp32": ["all_to_all_single", "all_gather_single"], "wire": ["all_reduce"]}[sum_in]
    assert [one[0] for one in sent] == called
    assert {each for one in sent for each in one[1:]} == {dtype}


# ------------------------------------------------------------------ where


def test_a_group_that_is_bound_to_a_gpu_reduces_on_it(monkeypatch):
    group = SimpleNamespace(_device_types=[torch.device("cuda")], bound_device_id=torch.device("cuda", 3))
    assert collectives.carried_by(group, torch.device("cpu")) == torch.device("cuda", 3)
    assert collectives.carried_by(group, torch.device("cuda", 1)) == torch.device("cuda", 1)
    group.bound_device_id = None
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert collectives.carried_by(group, torch.device("cpu")) == torch.device("cuda", 2)
    group._device_types = [torch.device("cpu"), torch.device("cuda")]
    assert collectives.carried_by(group, torch.device("cpu")) == torch.device("cpu")


def test_objects_are_sent_from_the_gpu_that_the_rank_computes_on(monkeypatch):
    """A script that only says ``.to(rank)`` leaves GPU 0 current on every rank, and NCCL refuses one GPU twice."""
    current = [0]

    @contextmanager
    def device(wanted):
        before, current[0] = current[0], wanted.index
        yield
        current[0] = before

    seen = []
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda *_, **__: seen.append(current[0]))
    monkeypatch.setattr(dist, "all_gather_object", lambda *_, **__: seen.append(current[0]))
    monkeypatch.setattr(collectives, "is_running", lambda: True)
    monkeypatch.setattr(collectives, "size_of", lambda _: 2)
    for near in (torch.device("cuda", 3), torch.device("cpu"), None):
        collectives.broadcast("word", near=near)
        collectives.gathered("word", near=near)
    assert seen == [3, 3, 0, 0, 0, 0]
    assert current == [0]


@pytest.mark.parametrize("words", ["Connection closed by peer [127.0.0.1]:1", "no such operator"])
def test_a_rank_that_lost_another_is_told_that_it_is_not_at_fault(monkeypatch, words):
    def lose(*_, **__):
        raise RuntimeError(words)

    for name in ("all_reduce", "broadcast_object_list", "all_gather_object"):
        monkeypatch.setattr(dist, name, lose)
    monkeypatch.setattr(collectives, "is_running", lambda: True)
    monkeypatch.setattr(collectives, "size_of", lambda _: 2)
    monkeypatch.setattr(collectives, "_world", lambda _: SimpleNamespace(_device_types=[torch.device("cpu")]))
    calls = [
        lambda: collectives.all_reduced(torch.ones(1), dist.ReduceOp.SUM),
        lambda: collectives.broadcast("word"),
        lambda: collectives.gathered("word"),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="^" + re.escape(words)) as raised:
            call()
        notes = getattr(raised.value, "__notes__", [])
        assert [note.partition(";")[0] for note in notes] == [
            "Another process of this training has ended or cannot be reached"
        ] * ("peer" in words)


def test_collectives_are_called_at_one_place():
    """There the backend can carry them; the hooks of gradients are given what it can."""
    root = Path(collectives.__file__).parents[1]
    calls = re.compile(r"\bdist\.(all_|broadcast|barrier|gather|reduce\(|reduce_|scatter|send|recv|monitored)")
    found = {path.name for path in root.rglob("*.py") if calls.search(path.read_text())}
    assert found == {"collectives.py", "compressed.py"}

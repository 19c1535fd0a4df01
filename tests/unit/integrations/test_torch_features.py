"""TrainStep with torch.compile, activation checkpointing and an averaged model, as the recipes write them."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import ampwise

PRECISIONS = ["bf16", "fp16"]


class Net(nn.Module):
    def __init__(self, *, checkpoints=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.checkpoints = nn.Linear(4, 8), nn.Linear(8, 1), checkpoints
        self.dtypes = set()

    def body(self, x):
        hidden = torch.relu(self.first(x))
        if not torch.compiler.is_compiling():
            self.dtypes.add(hidden.dtype)
        return hidden

    def forward(self, x):
        return self.second(checkpoint(self.body, x, use_reentrant=False) if self.checkpoints else self.body(x))


def batches(bad=None):
    torch.manual_seed(1)
    data = [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(5)]
    return [(x * 3e38 if index == bad else x, y) for index, (x, y) in enumerate(data)]


def train(net, precision, *, called=None, after=None, bad=None):
    model = net if called is None else called
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scale = {"loss_scale": 256.0} if precision == "fp16" else {}
    step = ampwise.TrainStep(optimizer, modules=model, precision=precision, **scale)
    for x, y in batches(bad):
        with step.autocast():
            loss = nn.functional.mse_loss(model(x).float(), y)
        result = step(loss)
        if after is not None:
            after(result)
    return net


def close(one, other, **bounds):
    return all(torch.allclose(a, b, **bounds) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_checkpointed_model_trains_as_the_plain_one_bit_for_bit(precision):
    checkpointed = train(Net(checkpoints=True), precision)
    assert close(checkpointed, train(Net(), precision), rtol=0, atol=0)
    # recomputed in the precision of the first pass
    assert checkpointed.dtypes == {torch.bfloat16 if precision == "bf16" else torch.float16}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_compiled_model_trains_as_the_plain_one(precision):
    net = Net()
    compiled = torch.compile(net, backend="aot_eager")
    train(net, precision, called=compiled)
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert close(net, train(Net(), precision), rtol=0, atol=0.03)
    assert not close(net, Net(), rtol=0, atol=0.03), "it moved by more than that"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_average_stays_in_fp32_and_is_not_moved_by_a_skipped_step(precision):
    net = Net()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    seen = []

    def update(result):
        if bool(result.stepped):
            average.update_parameters(net)
        seen.append([one.clone() for one in average.module.parameters()])

    train(net, precision, after=update, bad=3 if precision == "fp16" else None)
    assert {one.dtype for one in average.module.parameters()} == {torch.float32}
    assert all(one.isfinite().all() for one in average.parameters())
    moved = [not all(map(torch.equal, *pair)) for pair in itertools.pairwise(seen)]
    assert moved == [True, True, precision == "bf16", True]
    with torch.no_grad():
        (_, output), *_ = ampwise.evaluate(average, batches()[:1], precision=precision)
    assert output.dtype is (torch.bfloat16 if precision == "bf16" else torch.float16)

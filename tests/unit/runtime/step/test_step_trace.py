"""The whole step is one graph without a branch on data, and running that graph again is training.

The step is traced on the meta device, which stands for an accelerator: it has no value to branch on. The graph is then
run on the CPU, beside the loop written by hand with torch.amp.
"""

from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ampwise import TrainStep
from ampwise.runtime.scaling.loss_scale import DynamicLossScale
from ampwise.runtime.step.regime import Regime

READS = {"aten._local_scalar_dense.default", "aten.nonzero.default", "aten.item.default"}
SCALE = {"scale": 4.0, "growth_interval": 3}
NUM_STEPS, OVERFLOWS = 16, {4, 5, 11}


class Fused(torch.optim.Optimizer):
    """Speaks the fused optimizers' protocol, which torch's own do not on this device."""

    _step_supports_amp_scaling = True

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            grad = param.grad if self.grad_scale is None else param.grad / self.grad_scale
            param.sub_(torch.where(self.found_inf != 0, 0.0, grad * 0.1))


def model(device):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    return net.to(device)


def batches():
    generator = torch.Generator().manual_seed(1)
    for index in range(NUM_STEPS):
        yield torch.randn(8, 4, generator=generator) * (float("inf") if index in OVERFLOWS else 1.0)


def traced(monkeypatch, *, clip, hysteresis=1, loss_scale=None):
    """The graph of a step on the meta device, and the tensors that live from one step to the next."""
    monkeypatch.setattr(
        "ampwise.runtime.step.regime.choose_precision", lambda *_, **__: SimpleNamespace(precision="fp16")
    )
    net = model("meta")
    scale = loss_scale or DynamicLossScale(**SCALE, hysteresis=hysteresis)
    step = TrainStep(Fused(net.parameters()), modules=net, clip_grad_norm=clip, loss_scale=scale)
    step._regime = Regime(precision="fp32", device_type="cpu")  # torch has no autocast for the meta device

    def once(x):
        with step.autocast():
            loss = net(x).pow(2).mean()
        result = step(loss)
        return loss, result.found_inf, step.scaler._scale

    once(torch.ones(8, 4, device="meta"))
    graph = make_fx(once)(torch.ones(8, 4, device="meta"))
    state = [*net.parameters(), *net.buffers(), step.scaler._scale, step.scaler._growth_tracker]
    state += [step.scaler._memory.num_overflows, step.scaler._ring._ring, step._late_news._count]
    return graph, state


def on_the_cpu(graph, state, values):
    """The graph with ``values`` in the place of ``state``, its new tensors made on the CPU."""
    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": torch.device("cpu")}
    for name in {node.target for node in graph.graph.nodes if node.op == "get_attr"}:
        index = next(index for index, one in enumerate(state) if one is getattr(graph, name))
        setattr(graph, name, values[index])
    graph.recompile()
    return graph


def by_hand(net, *, clip):
    """Torch's own loop, with BatchNorm's buffers put back when a step is skipped."""
    optimizer, scaler = Fused(net.parameters()), torch.amp.GradScaler("cpu", 4.0, growth_interval=3)
    for x in batches():
        before = {name: value.clone() for name, value in net.named_buffers()}
        loss = net(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), clip or float("inf"))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if not norm.isfinite():
            net.load_state_dict(before, strict=False)
        yield loss, scaler.get_scale()


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("hysteresis", [1, 2])
def test_no_node_of_the_step_reads_a_number(monkeypatch, clip, hysteresis):
    graph, _ = traced(monkeypatch, clip=clip, hysteresis=hysteresis)
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert len(called) > 80
    assert READS.isdisjoint(called)


def test_headroom_reads_no_number(monkeypatch):
    graph, _ = traced(monkeypatch, clip=0.5, loss_scale="headroom")
    assert READS.isdisjoint(str(node.target) for node in graph.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("clip", [None, 0.5])
def test_running_the_graph_again_is_torchs_loop_and_an_overflow_in_it_skips_the_update(monkeypatch, clip):
    graph, state = traced(monkeypatch, clip=clip)
    net, twin = model("cpu"), model("cpu")
    scale, tracker = torch.tensor(4.0), torch.tensor(0, dtype=torch.int32)
    overflows, ring = torch.tensor(0, dtype=torch.int32), torch.zeros(1000, 5)
    values = [*net.parameters(), *net.buffers(), scale, tracker, overflows, ring, torch.tensor(0)]
    graph = on_the_cpu(graph, state, values)
    for index, (x, (loss, expected_scale)) in enumerate(zip(batches(), by_hand(twin, clip=clip), strict=True)):
        with torch.no_grad():
            replayed, found, after = graph(x)
        assert torch.equal(replayed, loss) or (replayed.isnan() and loss.isnan())
        assert bool(found) == (index in OVERFLOWS)
        assert float(after) == expected_scale
        for mine, other in zip(net.state_dict().values(), twin.state_dict().values(), strict=True):
            assert torch.equal(mine, other)

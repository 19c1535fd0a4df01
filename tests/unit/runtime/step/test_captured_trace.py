"""A captured step is traced whole: what is recorded has no branch on data and no look at the device.

The meta device stands for an accelerator: it has no value to read. Its graphs are made by ``make_fx``.
"""

from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ampwise import TrainStep
from ampwise.runtime.step.regime import Regime
from replaying import READS


class Fused(torch.optim.Optimizer):
    """Speaks the fused optimizers' protocol, which torch's own do not on this device."""

    _step_supports_amp_scaling = True

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "fused": True})

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            grad = param.grad if self.grad_scale is None else param.grad / self.grad_scale
            param.sub_(torch.where(self.found_inf != 0, 0.0, grad * self.param_groups[0]["lr"]))


class Traced:
    """Traces what it is to record."""

    def __init__(self):
        self.called = []

    def warm_up(self, body):
        return body()

    def record(self, body):
        returned = []

        def traced():
            returned.append(body())
            return returned[-1][1]

        graph = make_fx(traced)()
        self.called.append([node.target.overloadpacket.__name__ for node in graph.graph.nodes if _is_operator(node)])
        trace, _ = returned[-1]
        return lambda: None, (trace, torch.zeros(4 + len(trace.found_inf), device="meta"))


def _is_operator(node):
    return node.op == "call_function" and hasattr(node.target, "overloadpacket")


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_what_is_recorded_looks_at_nothing(monkeypatch, window, clip):
    graphs = Traced()
    monkeypatch.setattr("ampwise.runtime.step.step.graphs_for", lambda _: graphs)
    monkeypatch.setattr(
        "ampwise.runtime.step.regime.choose_precision", lambda *_, **__: SimpleNamespace(precision="fp16")
    )
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1)).to("meta")
    options = {"clip_grad_norm": clip, "accumulation_steps": window, "capture": True}
    step = TrainStep(Fused(net.parameters()), modules=net, **options)
    step._regime = Regime(precision="fp32", device_type="cpu")  # torch has no autocast for the meta device
    train = step.capture(lambda x: net(x).pow(2).mean())
    for _ in range(4 * window):
        train(torch.ones(8, 4, device="meta"))
    assert len(graphs.called) == min(window, 3)
    assert len(graphs.called[-1]) > 60
    assert not set(READS).intersection(*map(set, graphs.called))
    assert "where" in graphs.called[-1]

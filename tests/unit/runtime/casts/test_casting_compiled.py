"""A plan on a model that is compiled: the same numbers, and no more graphs than formats."""

import threading

import pytest
import torch

from ampwise.runtime.casts.casting import apply_plan, plan_in_effect
from planned_nets import BF16, Quiet, net, plan


@pytest.mark.leaves_behind("inductor adds to sys.path")
@pytest.mark.parametrize("rules", [(), ({"module": "wo", "compute": "fp32"}, {"op": "softmax", "compute": "fp32"})])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_equals_eager(rules, backend, x):
    torch._dynamo.reset()
    model = net(Quiet)

    def outcome(call):
        model.zero_grad()
        out = call(x)
        out.square().sum().backward()
        return [out, *(p.grad for p in model.parameters())]

    with plan_in_effect(model, plan(*rules)):
        eager = outcome(model)
        compiled = outcome(torch.compile(model, backend=backend, fullgraph=True))
    # inductor does not round between the operators it fuses
    tolerance = {"rtol": 0.05, "atol": 1e-3} if backend == "inductor" else {"rtol": 0, "atol": 0}
    assert all(torch.allclose(one, other, **tolerance) for one, other in zip(eager, compiled, strict=True))


def test_code_may_be_compiled_in_a_thread_that_never_ran_it(x):
    torch._dynamo.reset()
    model = net(Quiet)
    outs = []
    with plan_in_effect(model, plan({"op": "softmax", "compute": "fp32"})):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for _ in range(2):
            thread = threading.Thread(target=lambda: outs.append(compiled(x)))
            thread.start()
            thread.join()
        assert all(torch.equal(out, model(x)) for out in outs)
    assert len(outs) == 2


def test_a_model_compiled_before_is_compiled_anew(x):
    torch._dynamo.reset()
    model = net(Quiet)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    plain = compiled(x)
    undo = apply_plan(compiled, plan({"module": "wo", "compute": "fp32"}))
    assert torch.equal(compiled(x), model(x))
    assert not torch.equal(compiled(x), plain)
    undo()
    assert torch.equal(compiled(x), plain)


def test_another_format_in_a_region_is_one_more_graph(x):
    torch._dynamo.reset()
    model = net(Quiet)
    with plan_in_effect(model, plan({"module": "wo", "compute": "fp32"})):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch._dynamo.utils.counters.clear()
        first = model.wo.forward.region
        low = type(first)(compute=BF16)
        for region in (first, low) * 3:
            model.wo.forward.region = region
            assert torch.equal(compiled(x), model(x))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.leaves_behind("torch.export adds to sys.path")
def test_a_model_is_exported_with_its_plan(x):
    """Not with ``strict=True``, which fails on autocast written by hand, too."""
    model = net(Quiet)
    with plan_in_effect(model, plan({"module": "wo", "compute": "fp32"}, {"op": "softmax", "compute": "fp32"})):
        expected = model(x)
        exported = torch.export.export(model, (x,), strict=False).module()
    assert torch.equal(exported(x), expected)

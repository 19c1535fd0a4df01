"""``ampwise.autocast``: torch's without a plan, in every respect; and what does not go together."""

import pytest
import torch
from torch import nn

import ampwise
from ampwise._base.errors import PlanError, UsageError


def test_without_a_plan_it_is_torchs():
    region = ampwise.autocast("cpu", torch.bfloat16, enabled=False, cache_enabled=False)
    assert type(region) is torch.autocast
    assert (region.device, region.fast_dtype, region._enabled, region._cache_enabled) == (
        "cpu",
        torch.bfloat16,
        False,
        False,
    )


def test_it_decorates_and_compiles():
    weight = torch.ones(2, 2)

    @ampwise.autocast("cpu", dtype=torch.bfloat16)
    def decorated(x):
        return x @ weight

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x):
        with ampwise.autocast("cpu", dtype=torch.bfloat16):
            return x @ weight

    assert decorated(weight).dtype is compiled(weight).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"model": nn.Linear(2, 2)}, UsageError, "a model and no plan"),
        ({"plan": "bf16", "dtype": torch.bfloat16}, UsageError, r"dtype torch.bfloat16 and a plan.*leave dtype out"),
        ({"plan": "bf16", "model": "model.pt"}, UsageError, "a str as model; give a torch.nn.Module"),
        ({"plan": "bf61"}, PlanError, 'did you mean "bf16"'),
        ({"plan": 16}, UsageError, "given as int"),
        ({"plan": "bf16", "device_type": "gpu"}, RuntimeError, "device type|device_type"),
    ],
)
def test_what_does_not_go_together_is_said_when_it_is_made(arguments, error, text):
    with pytest.raises(error, match=text):
        ampwise.autocast(**{"device_type": "cpu", **arguments})

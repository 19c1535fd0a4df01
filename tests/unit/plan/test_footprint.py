"""The bytes a plan says a parameter takes, held against those that an optimizer really keeps."""

import pytest
import torch
from torch import nn

from ampwise.plan.footprint import footprint
from ampwise.plan.plan import Plan
from ampwise.runtime.casts.small_updates import keep_small_updates


@pytest.mark.parametrize(
    ("parameters", "updates", "total"),
    [("fp32", "nearest", 16), ("bf16", "nearest", 8), ("bf16", "stochastic", 8), ("bf16", "master", 16)],
)
def test_a_parameter_takes_what_is_said(parameters, updates, total):
    said = footprint(Plan(default="bf16", parameters=parameters, updates=updates))
    assert said.total == total
    assert said.words().startswith(f"{total} bytes a parameter with AdamW: weight {said.weight}, gradient")

    param = nn.Parameter(torch.ones(100, dtype=torch.bfloat16 if parameters == "bf16" else torch.float32))
    optimizer = torch.optim.AdamW([param])
    keep_small_updates(optimizer, updates)
    param.grad = torch.ones_like(param)
    optimizer.step()
    state = [value for value in optimizer.state[param].values() if value.shape == param.shape]
    assert sum(one.nbytes for one in (param, param.grad, *state)) == 100 * total

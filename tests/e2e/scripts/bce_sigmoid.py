"""A classifier with a sigmoid and BCELoss that is sure and wrong: its loss is the logit, 8, not the clamp, 100."""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.Linear(4, 1)
nn.init.constant_(layer.weight, 2.0)
nn.init.zeros_(layer.bias)
model = nn.Sequential(layer, nn.Sigmoid())
criterion = nn.BCELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

x, target = torch.ones(8, 4), torch.zeros(8, 1)
for step in range(3):
    loss = criterion(model(x), target)
    assert loss.item() < 9, f"a logit of 8 costs 8.0003, not {loss.item():.4f}"
    optimizer.zero_grad()
    loss.backward()
    assert layer.weight.grad.abs().max() > 0.5, "no gradient flows back from a saturated sigmoid"
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")

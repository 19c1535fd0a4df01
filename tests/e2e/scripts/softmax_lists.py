"""Attention by hand: the weights of each query must sum to one."""

import torch
from torch import nn

torch.manual_seed(0)
query, key, value, out = (nn.Linear(32, 32) for _ in range(4))
norm = nn.LayerNorm(32)
parameters = [p for layer in (query, key, value, out, norm) for p in layer.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)

for step in range(3):
    x = torch.randn(4, 64, 32)
    scores = query(x) @ key(x).transpose(1, 2) / 32**0.5
    weights = scores.softmax(-1)
    error = (weights.double().sum(-1) - 1).abs().max().item()
    assert error < 1e-5, f"attention weights are off by {error:.1e}"
    y = norm(out(weights @ value(x)))
    spread = y.double().var(-1, unbiased=False).mean().item()
    loss = ((y - x) ** 2).sum() / x.numel()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f} spread {spread:.6f}")

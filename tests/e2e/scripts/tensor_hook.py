"""Clips the gradient of a hidden state (recurrent nets), and logs how often that was needed."""
import torch

torch.manual_seed(0)
cell, out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], lr=0.1)
clipped = []


def clip(g):
    clipped.append(bool(g.abs().max() > 10))
    return g.clamp(-10, 10)


for step in range(2):
    optimizer.zero_grad()
    h = torch.zeros(4, 8)
    for x in torch.randn(3, 4, 8):
        h = torch.tanh(cell(h) + x)
        h.register_hook(clip)
    out(h).mean().backward()
    assert 1e-4 < cell.weight.grad.abs().max() < 1, f"the gradient is {cell.weight.grad.abs().max()}"
    optimizer.step()
assert not any(clipped), "gradients were clipped"

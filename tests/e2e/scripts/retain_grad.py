"""Saliency: looks at the gradient of a hidden layer (Grad-CAM)."""
import torch

torch.manual_seed(0)
first, last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    hidden = first(torch.randn(4, 8))
    hidden.retain_grad()
    last(hidden.relu()).mean().backward()
    assert 0 < hidden.grad.abs().max() < 1, f"the gradient is {hidden.grad.abs().max()}"
    optimizer.step()

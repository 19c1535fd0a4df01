"""Watches gradients with every kind of module hook."""
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
largest = {}


def look(name):
    def hook(module, *gradients):
        shown = [g for group in gradients for g in group if g is not None]
        largest[name] = max(g.abs().max().item() for g in shown)

    return hook


model[0].register_full_backward_hook(look("full"))
model[1].register_full_backward_pre_hook(look("pre"))
model[2].register_backward_hook(look("old"))
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 8).requires_grad_()).mean().backward()
    optimizer.step()
assert set(largest) == {"full", "pre", "old"}, largest
assert all(value < 2 for value in largest.values()), largest

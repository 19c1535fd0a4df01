"""Watches the gradients of all modules."""
import torch
from torch.nn.modules.module import register_module_full_backward_hook, register_module_full_backward_pre_hook

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
largest = {"full": [], "pre": []}
handles = [
    register_module_full_backward_hook(lambda m, i, o: largest["full"].append(o[0].abs().max().item())),
    register_module_full_backward_pre_hook(lambda m, o: largest["pre"].append(o[0].abs().max().item())),
]
try:
    for step in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 8).requires_grad_()).mean().backward()
        optimizer.step()
finally:
    for handle in handles:
        handle.remove()
assert all(largest.values())
assert all(value < 1 for values in largest.values() for value in values), largest

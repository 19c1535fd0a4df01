"""Exports its model with TorchScript's tracer after training."""
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8)
for step in range(2):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()


class Twice(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + self.inner(x + 1)


twice = Twice(model)
traced = torch.jit.trace(twice, x)
assert torch.allclose(traced(x), twice(x), atol=1e-2)

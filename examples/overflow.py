"""A feed-forward stack whose second product leaves fp16, as T5's does: `ampwise doctor --emulate fp16` finds it."""

import torch
from torch import nn
from torch.nn import functional as F


class FeedForward(nn.Module):
    """T5's: an expansion, a ReLU, and a product with large weights."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.wi = nn.Linear(width, 4 * width)
        self.wo = nn.Linear(4 * width, width)
        with torch.no_grad():
            self.wo.weight.mul_(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x + self.wo(F.relu(self.wi(x))), x.shape[-1:])


class Net(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList([FeedForward(width, 1.0), FeedForward(width, 3e5)])
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(64, 32), torch.randint(8, (64,))
for step in range(40):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step + 1}: loss {loss.item():.4f}")

"""A model of a hundred modules on made-up data, as long as one lets it run."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


model = nn.Sequential(nn.Linear(16, 32), *(Block(32) for _ in range(24)), nn.LayerNorm(32), nn.Linear(32, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(1024, 16)
labels = data[:, :10].argmax(1)
for step in range(100_000):
    rows = torch.randint(0, 1024, (32,))
    loss = nn.functional.cross_entropy(model(data[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

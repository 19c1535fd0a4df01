"""Trains under its own autocast and evaluates in full precision."""
import torch

torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 64)
for step in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        assert model(x).dtype == torch.float32, "evaluation is not in full precision"

import torch
from torch import nn

torch.manual_seed(0)
data = [(torch.randn(8, 16), torch.randn(8, 1)) for _ in range(6)]
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
losses = []
for x, y in data:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())

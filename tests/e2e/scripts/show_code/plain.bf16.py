import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(6):
    inputs, targets = x[step * 8 : step * 8 + 8], y[step * 8 : step * 8 + 8]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

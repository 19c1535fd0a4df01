import torch
import torch.nn as nn

torch.manual_seed(0)
net = nn.Linear(8, 3)
crit = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
scaler = torch.amp.GradScaler("cpu")
data = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]
losses = []
for x, y in data + data:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = crit(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if len(losses) < 6:
        losses.append(loss.item())
with torch.no_grad():
    losses += [crit(net(x), y).item() for x, y in data]

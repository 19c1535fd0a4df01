import torch
import torch.nn.functional as F

torch.manual_seed(0)
data = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(8)]
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu")
losses = []
for i, (x, y) in enumerate(data):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net((x - x.mean()) / x.std()), y)
    losses.append(loss.item())
    scaler.scale(loss / 2).backward()
    if i % 2 == 1:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

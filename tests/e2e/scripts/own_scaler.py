"""Scales its loss itself."""
import torch

torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
x = torch.randn(16, 64)
for step in range(3):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        assert model(x).dtype == torch.float32, "evaluation is not in full precision"
assert scaler.get_scale() == 2.0**10

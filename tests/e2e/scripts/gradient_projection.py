"""Keeps gradients out of the directions an old task needs (orthogonal gradient descent)."""
import torch

torch.manual_seed(0)
model = torch.nn.Linear(32, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
basis = torch.linalg.qr(torch.randn(32, 4))[0]
model.weight.register_hook(lambda g: g - (g @ basis) @ basis.T)

x, y = torch.randn(64, 32), torch.randn(64, 8)
for step in range(3):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    left = (model.weight.grad.double() @ basis.double()).abs().max()
    assert left < 1e-6, f"{left} is left in the protected directions"
    optimizer.step()

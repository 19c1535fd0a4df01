"""Adversarial examples within a subspace; gradients are taken by hand and projected in a hook."""
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
basis = torch.linalg.qr(torch.randn(32, 4))[0]
labels = torch.randint(0, 2, (64,))

for step in range(2):
    x = torch.randn(64, 32, requires_grad=True)
    x.register_hook(lambda g: g - (g @ basis) @ basis.T)
    loss = torch.nn.functional.cross_entropy(model(x), labels)
    (g,) = torch.autograd.grad(loss, x)
    left = ((g.double() @ basis.double()).abs().max() / g.abs().max()).item()
    assert left < 1e-5, f"{left} is left in the protected directions"
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model((x + 0.1 * g.sign()).detach()), labels).backward()
    optimizer.step()

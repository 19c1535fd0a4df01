"""An optimizer that orthogonalises its update (Muon with an exact step)."""
import torch


class Orthogonal(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim == 2:
                    q, r = torch.linalg.qr(p.grad.T)
                    update = (q @ torch.diag(r.diagonal().sign())).T
                    error = (update @ update.T - torch.eye(len(update))).abs().max()
                    assert error < 1e-4, f"the update is not orthogonal: {error}"
                    p.add_(update, alpha=-group["lr"])
                else:
                    p.add_(p.grad, alpha=-group["lr"])


torch.manual_seed(0)
model = torch.nn.Linear(64, 16)
optimizer = Orthogonal(model.parameters(), lr=0.01)
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).pow(2).mean().backward()
    optimizer.step()

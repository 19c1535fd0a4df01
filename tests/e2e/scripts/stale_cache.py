"""Word-embedding regression whose weights are updated by hand, as word_language_model does."""
import torch

torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
x, y = torch.randn(32, 16), torch.randn(32, 4)

for epoch in range(3):
    before = model(x)
    loss = torch.nn.functional.mse_loss(before, y)
    model.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.5)
    after = model(x)
    assert not torch.equal(before, after), "the update had no effect"

ema = torch.nn.Linear(16, 4)
old = ema(x)
ema.load_state_dict(model.state_dict())
assert not torch.equal(ema(x), old), "the loaded weights had no effect"

with torch.no_grad():
    for p in model.parameters():
        p.clamp_(-0.01, 0.01)
assert model(x).abs().max() < 1, "the clipped weights had no effect"

"""A critic whose loss is the mean of its scores, as in a Wasserstein GAN; the loss that is logged must be that mean."""

import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

for step in range(3):
    real, fake = torch.randn(64, 16) + 1, torch.randn(64, 16)
    real_scores, fake_scores = critic(real), critic(fake)
    loss = fake_scores.mean() - real_scores.mean()
    exact = fake_scores.detach().double().mean() - real_scores.detach().double().mean()
    assert abs(loss.item() - exact.item()) < 1e-6, f"the loss says {loss.item()}, the scores' means {exact.item()}"
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")

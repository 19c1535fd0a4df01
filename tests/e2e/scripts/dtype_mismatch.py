"""Writes what a layer computes into buffers of fp32, mixes the two, and transforms it: each raises on mixed dtypes."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Linear(8, 16)
head = nn.utils.parametrizations.orthogonal(nn.Linear(16, 16))
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
memory = torch.zeros(32, 16)
average = torch.zeros(16, 16)

for step in range(3):
    x = torch.randn(6, 8)
    index = torch.randperm(32)[:6]
    features = encoder(x)
    with torch.no_grad():
        memory[index] = features
        memory.index_add_(0, index, features)
        memory.index_copy_(0, index, features)
        memory.scatter_(0, index[:, None].expand(-1, 16), features)
        memory.scatter_add_(0, index[:, None].expand(-1, 16), features)
        memory.masked_scatter_(memory > 1, features)
        average.addmm_(features.T, features, beta=0.9, alpha=0.1)
        average[0].lerp_(features.mean(0), 0.1)
    pooled = torch.zeros(4, 16).index_add(0, index % 4, features)
    blended = torch.lerp(memory[index], features, 0.5)
    spectrum = torch.view_as_complex(head(blended).reshape(6, 8, 2)) * torch.complex(features[:, :8], features[:, 8:])
    assert torch.isclose(features, features.detach().float()).all()
    loss = torch.fft.ifft(spectrum).abs().pow(2).sum() + pooled.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")

"""A model kept in bfloat16 by hand, with a head that is not."""
import torch

torch.manual_seed(0)
body, head = torch.nn.Linear(64, 32).bfloat16(), torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    out = head(body(torch.randn(16, 64).bfloat16()).float())
    assert out.dtype == torch.float32, "the head is not in full precision"
    out.pow(2).mean().backward()
    optimizer.step()

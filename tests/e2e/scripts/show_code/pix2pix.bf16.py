import torch
from torch import nn

torch.manual_seed(0)
G, D = nn.Linear(6, 6), nn.Linear(12, 1)
bce = nn.functional.binary_cross_entropy_with_logits
opt_g = torch.optim.Adam(G.parameters(), lr=0.05)
opt_d = torch.optim.Adam(D.parameters(), lr=0.05)
losses = []
for a, b in [(torch.randn(4, 6), torch.randn(4, 6)) for _ in range(5)]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fake = G(a)
        no = D(torch.cat((a, fake), 1).detach())
        yes = D(torch.cat((a, b), 1))
        loss_d = (bce(no, torch.zeros_like(no)) + bce(yes, torch.ones_like(yes))) * 0.5
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        no = D(torch.cat((a, fake), 1))
        loss_g = bce(no, torch.ones_like(no))
    loss_g.backward()
    opt_g.step()
    losses += [loss_d.item(), loss_g.item()]

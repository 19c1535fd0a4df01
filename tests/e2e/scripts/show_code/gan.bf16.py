import torch
import torch.nn as nn

torch.manual_seed(0)
real_data = torch.randn(48, 6) + 2
netG = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6))
netD = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
bce = nn.functional.binary_cross_entropy_with_logits
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.02)
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.02)
one, zero = torch.ones(8, 1), torch.zeros(8, 1)
losses = []
for epoch in range(2):
    for i in range(3):
        optimizerD.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            real = bce(netD(real_data[i * 8 : i * 8 + 8]), one)
        real.backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            image = netG(torch.randn(8, 4))
            fake = bce(netD(image.detach()), zero)
        fake.backward()
        optimizerD.step()
        optimizerG.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fooled = bce(netD(image), one)
        fooled.backward()
        optimizerG.step()
        losses += [(real + fake).item(), fooled.item()]

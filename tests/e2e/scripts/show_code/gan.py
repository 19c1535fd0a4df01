"""Two models, two optimizers, three backward passes (DCGAN's shape)."""
import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)
opt = {"lr": 0.02}
real_data = torch.randn(48, 6) + 2
netG = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6))
netD = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
criterion = nn.BCEWithLogitsLoss()
optimizerD = optim.Adam(netD.parameters(), lr=opt["lr"])
optimizerG = optim.Adam(netG.parameters(), lr=opt["lr"])
losses = []
for epoch in range(2):
    for i in range(3):
        netD.zero_grad()
        real = real_data[i * 8 : i * 8 + 8]
        label = torch.full((8, 1), 1.0)
        output = netD(real)
        errD_real = criterion(output, label)
        errD_real.backward()

        noise = torch.randn(8, 4)
        fake = netG(noise)
        label.fill_(0.0)
        output = netD(fake.detach())
        errD_fake = criterion(output, label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()

        netG.zero_grad()
        label.fill_(1.0)
        output = netD(fake)
        errG = criterion(output, label)
        errG.backward()
        optimizerG.step()
        losses += [errD.item(), errG.item()]

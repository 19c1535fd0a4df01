"""Methods that pass everything through self: forward(), backward_D(), backward_G(), optimize()."""
import torch
from torch import nn


class Model:
    def __init__(self):
        self.netG = nn.Linear(6, 6)
        self.netD = nn.Linear(12, 1)
        self.criterionGAN = nn.BCEWithLogitsLoss()
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=0.05)
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=0.05)

    def set_input(self, a, b):
        self.real_A, self.real_B = a, b

    def forward(self):
        self.fake_B = self.netG(self.real_A)

    def backward_D(self):
        pred_fake = self.netD(torch.cat((self.real_A, self.fake_B), 1).detach())
        loss_fake = self.criterionGAN(pred_fake, torch.zeros_like(pred_fake))
        pred_real = self.netD(torch.cat((self.real_A, self.real_B), 1))
        loss_real = self.criterionGAN(pred_real, torch.ones_like(pred_real))
        self.loss_D = (loss_fake + loss_real) * 0.5
        self.loss_D.backward()

    def backward_G(self):
        pred_fake = self.netD(torch.cat((self.real_A, self.fake_B), 1))
        self.loss_G = self.criterionGAN(pred_fake, torch.ones_like(pred_fake))
        self.loss_G.backward()

    def optimize(self):
        self.forward()
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.optimizer_D.step()
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()


torch.manual_seed(0)
model = Model()
losses = []
for a, b in [(torch.randn(4, 6), torch.randn(4, 6)) for _ in range(5)]:
    model.set_input(a, b)
    model.optimize()
    losses += [model.loss_D.item(), model.loss_G.item()]

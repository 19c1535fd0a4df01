"""A Trainer class: accumulation, clipping, a checkpoint that is loaded again, another object called scaler."""
import io

import torch as th
import torch.nn.functional as F


class Standardize:
    def transform(self, x):
        return (x - x.mean()) / x.std()


class Trainer:
    def __init__(self, model, lr=0.05, accumulate=2):
        self.model = model
        self.optimizer = th.optim.AdamW(model.parameters(), lr=lr)
        self.accumulate = accumulate
        self.scaler = Standardize()
        self.losses = []

    def compute_loss(self, batch):
        x, y = batch
        out = self.model(self.scaler.transform(x))
        return F.cross_entropy(out, y)

    def training_step(self, i, batch):
        loss = self.compute_loss(batch)
        self.losses.append(loss.item())
        loss = loss / self.accumulate
        (loss).backward()
        if (i + 1) % self.accumulate == 0:
            th.nn.utils.clip_grad_norm_(
                self.model.parameters(),
                max_norm=0.5,
            )
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def fit(self, batches):
        for i, batch in enumerate(batches):
            self.training_step(i, batch)

    def save(self, file):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        th.save(state, file)

    def load(self, file):
        state = th.load(file)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


th.manual_seed(0)
data = [(th.randn(8, 16), th.randint(0, 4, (8,))) for _ in range(8)]
net = th.nn.Sequential(th.nn.Linear(16, 32), th.nn.GELU(), th.nn.Linear(32, 4))
trainer = Trainer(net)
trainer.fit(data[:4])
file = io.BytesIO()
trainer.save(file)
file.seek(0)
trainer.load(file)
trainer.fit(data[4:])
losses = trainer.losses

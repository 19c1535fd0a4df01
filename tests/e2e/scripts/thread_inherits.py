"""Evaluates in a thread beside training."""
import threading

import torch

torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 64)
seen = {}


def evaluate():
    with torch.no_grad():
        seen["logits"] = model(x)


for step in range(2):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    thread = threading.Thread(target=evaluate)
    thread.start()
    thread.join()
    assert torch.equal(seen["logits"], model(x).detach()), "the thread computes something else"

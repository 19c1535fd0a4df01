"""Scores outputs with numpy."""
import numpy as np
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, labels = torch.randn(64, 8), torch.randint(0, 3, (64,))
for step in range(2):
    optimizer.zero_grad()
    logits = model(x)
    torch.nn.functional.cross_entropy(logits, labels).backward()
    optimizer.step()
accuracy = (logits.detach().numpy().argmax(1) == labels.numpy()).mean()
confidence = np.asarray(logits.detach().softmax(1)).max(1).mean()
assert 0 <= accuracy <= 1 and 0 < confidence <= 1
assert np.array(logits.detach()).dtype == np.float32

import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Linear(8, 3); crit = nn.CrossEntropyLoss(); optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
data = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(6)]; losses = []
for x, y in data:
	optimizer.zero_grad(); loss = crit(net(x), y); loss.backward(); optimizer.step(); losses.append(loss.item())
for x, y in data: optimizer.zero_grad(); crit(net(x), y).backward(); optimizer.step()
with torch.no_grad(): losses += [crit(net(x), y).item() for x, y in data]

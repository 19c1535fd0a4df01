"""A dataset that whitens its samples in a worker process."""
import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
whiten = torch.randn(8, 8)


class Whitened(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return (torch.ones(1, 8) @ whiten)[0]


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Whitened(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
    assert batch.dtype == torch.float32, batch.dtype
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()

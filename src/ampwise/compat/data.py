"""Where torch's DataLoader keeps what ampwise replaces: private places, as import paths."""

ITERATOR = "torch.utils.data.dataloader:_BaseDataLoaderIter"
"""What ``iter(loader)`` is, whatever the number of workers."""
WORKER_MODULE = "torch.utils.data._utils.worker"
WORKER_LOOP = "_worker_loop"
"""What a worker process runs."""

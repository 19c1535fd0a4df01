"""Where torch's DataLoader keeps what ampwise replaces: private places, as import paths."""

ITERATOR = "torch.utils.data.dataloader:_BaseDataLoaderIter"
"""What ``iter(loader)`` is, whatever the number of workers."""
WORKER_MODULE = "torch.utils.data._utils.worker"
WORKER_LOOP = "_worker_loop"
"""What a worker process runs."""


def num_workers_of(iterator: object) -> int:
    """How many processes load for a DataLoader's iterator."""
    found = getattr(iterator, "_num_workers", 0)
    return found if isinstance(found, int) else 0

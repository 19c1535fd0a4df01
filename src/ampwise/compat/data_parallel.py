# pyright: reportPrivateImportUsage=false
"""DistributedDataParallel's reducer, and what it calls to sum a bucket over the processes.

Private name: ``torch.distributed._register_comm_hook``, which DDP's own ``register_comm_hook`` calls.
"""

from typing import Any

import torch


def reduce_alone(reducer: Any) -> None:
    """Let ``reducer`` take its own buckets for the sums: in place, and without a look at anybody's message."""
    torch.distributed._register_comm_hook(reducer, None, _reduced)


def _reduced(_: Any, bucket: Any) -> "torch.futures.Future[Any]":
    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done

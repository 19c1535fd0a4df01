"""What CUDA's caching allocator says of itself: the figures of ``memory_stats`` and the segments of its snapshot."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ampwise.records.memory import AllocatorState

_INACTIVE = "inactive"


def allocator_states() -> tuple[AllocatorState, ...]:
    """The state of each GPU's allocator that this process uses; none where CUDA is not in use."""
    if not torch.cuda.is_initialized():
        return ()
    indices = range(torch.cuda.device_count())
    return tuple(_state(index) for index in indices if torch.cuda.max_memory_reserved(index))


def _state(index: int) -> AllocatorState:
    stats: Mapping[str, int] = torch.cuda.memory_stats(index)
    free, total = torch.cuda.mem_get_info(index)
    segments = [segment for segment in torch.cuda.memory_snapshot() if segment.get("device") == index]
    blocks = [block for segment in segments for block in segment["blocks"] if block["state"] == _INACTIVE]
    return AllocatorState(
        device=f"cuda:{index}",
        allocated_bytes=torch.cuda.memory_allocated(index),
        max_allocated_bytes=torch.cuda.max_memory_allocated(index),
        reserved_bytes=torch.cuda.memory_reserved(index),
        max_reserved_bytes=torch.cuda.max_memory_reserved(index),
        active_bytes=stats.get("active_bytes.all.current", 0),
        inactive_split_bytes=stats.get("inactive_split_bytes.all.current", 0),
        requested_bytes=stats.get("requested_bytes.all.current", 0),
        free_bytes=free,
        total_bytes=total,
        num_alloc_retries=stats.get("num_alloc_retries", 0),
        num_ooms=stats.get("num_ooms", 0),
        largest_free_block_bytes=max((block["size"] for block in blocks), default=0),
        releasable_bytes=sum(segment["total_size"] for segment in segments if _is_free(segment["blocks"])),
        is_expandable=any(segment.get("is_expandable") for segment in segments),
    )


def _is_free(blocks: Iterable[Mapping[str, Any]]) -> bool:
    return all(block["state"] == _INACTIVE for block in blocks)

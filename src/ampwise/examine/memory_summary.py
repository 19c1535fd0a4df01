"""``ampwise.memory_summary()``: who holds the memory now."""

from collections import Counter
from typing import Final

import torch
from torch.optim import Optimizer

from ampwise._base.units import format_bytes
from ampwise.compat.allocator import allocator_states
from ampwise.compat.memory import gradient_of, storages_of
from ampwise.interpose.internal import internal
from ampwise.observe.dtypes import tensors_in
from ampwise.observe.live import live_objects
from ampwise.records.memory import AllocatorState, MemoryCategory

_ORDER: Final = (
    MemoryCategory.PARAMETER,
    MemoryCategory.GRADIENT,
    MemoryCategory.OPTIMIZER_STATE,
    MemoryCategory.OTHER,
)


def memory_summary() -> str:
    """How much memory live tensors hold, by device and purpose, and what a GPU's allocator holds beside them.

    Counts each storage once, in the first category that fits. Tensors that only autograd holds, such as activations
    between forward and backward, are seen on a GPU in its allocator's figure alone.
    """
    with internal():
        held = _held()
    lines = [line for device in sorted({device for device, _ in held}) for line in _device_lines(device, held)]
    return "\n".join([*(lines or ["no tensor is alive"]), *map(_allocator_line, allocator_states())])


def _held() -> "Counter[tuple[str, MemoryCategory]]":
    held: Counter[tuple[str, MemoryCategory]] = Counter()
    seen: set[int] = set()
    tensors = [one for one in live_objects(torch.Tensor) if one.device.type != "meta"]
    parameters = [one for one in tensors if isinstance(one, torch.nn.Parameter)]
    optimizers = live_objects(Optimizer)
    states = [one for optimizer in optimizers for state in optimizer.state.values() for one in _of_state(state)]
    gradients = [grad for one in parameters if (grad := gradient_of(one)) is not None]
    for category, group in zip(_ORDER, (parameters, gradients, states, tensors), strict=True):
        for tensor in group:
            for storage in storages_of(tensor):
                if id(storage) not in seen and storage.device.type != "meta":
                    seen.add(id(storage))
                    held[str(storage.device), category] += storage.nbytes()
    return held


def _of_state(state: object) -> list[torch.Tensor]:
    return list(tensors_in(*state.values())) if isinstance(state, dict) else []


def _device_lines(device: str, held: "Counter[tuple[str, MemoryCategory]]") -> list[str]:
    rows = [(category, held[device, category]) for category in _ORDER if held[device, category]]
    total = sum(num_bytes for _, num_bytes in rows)
    parts = [f"  {category.value.replace('_', ' '):<16} {format_bytes(num_bytes)}" for category, num_bytes in rows]
    return [f"{device}: {format_bytes(total)} in live tensors", *parts]


def _allocator_line(state: AllocatorState) -> str:
    return (
        f"{state.device}: {format_bytes(state.allocated_bytes)} allocated (at most "
        f"{format_bytes(state.max_allocated_bytes)}), {format_bytes(state.reserved_bytes)} reserved, "
        f"{format_bytes(state.inactive_split_bytes)} in pieces, {format_bytes(state.free_bytes)} of "
        f"{format_bytes(state.total_bytes)} free"
    )

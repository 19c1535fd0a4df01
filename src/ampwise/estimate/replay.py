"""The ledger of a run once more through an allocator: with storages of other sizes, or with what convolutions take."""

from collections import defaultdict
from collections.abc import Callable

from ampwise.estimate.allocator import AllocatorSettings, Block, CachingAllocator
from ampwise.estimate.ledger import Ledger, Storage

SizeOf = Callable[[Storage], int]
"""The bytes that a storage has in the other run; 0 where it is not made at all."""


def replay(
    ledger: Ledger,
    *,
    size_of: SizeOf = lambda storage: storage.num_bytes,
    settings: AllocatorSettings | None = None,
    with_convolutions: bool = False,
) -> CachingAllocator:
    """The allocator as it stands at the end, with its peaks, had storages had other sizes.

    Law: without arguments the peaks are the run's own.

    Args:
        ledger: Of all of the run.
        size_of: The other sizes.
        settings: Of the allocator, where they are not the run's.
        with_convolutions: Let each convolution ask for its workspace too.
    """
    allocator = CachingAllocator(settings or ledger.allocator.settings)
    births = {one.born: one for one in ledger.storages}
    deaths = {one.died: one for one in ledger.storages if one.died is not None}
    asked = defaultdict(list[int])
    for time, num_bytes in ledger.convolutions if with_convolutions else ():
        asked[time].append(num_bytes)
    blocks: dict[int, Block | None] = {}
    for time in range(ledger.time + 1):
        if time in ledger.emptied:
            allocator.empty_cache()
        for num_bytes in asked.get(time, ()):
            allocator.free(allocator.allocate(num_bytes))
        born, died = births.get(time), deaths.get(time)
        if born is not None:
            blocks[time] = allocator.allocate(size_of(born))
        if died is not None:
            allocator.free(blocks.pop(died.born))
    return allocator

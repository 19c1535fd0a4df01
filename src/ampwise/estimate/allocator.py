"""Model of torch's CUDA caching allocator: which blocks it makes of requests, and what it takes from the driver.

Constants and rules are those of ``c10/core/AllocatorConfig.h`` and ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.13,
for one stream. Private pools, of CUDA graphs, are not modelled.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final

MIN_BLOCK_BYTES: Final = 512
SMALL_REQUEST_BYTES: Final = 2**20
SMALL_SEGMENT_BYTES: Final = 2 * 2**20
MIN_LARGE_SEGMENT_BYTES: Final = 10 * 2**20
ROUND_LARGE_BYTES: Final = 2 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """What ``PYTORCH_ALLOC_CONF`` sets, as far as it changes sizes."""

    large_segment_bytes: int = 20 * 2**20
    expandable_segments: bool = False


class DeviceFull(Exception):  # noqa: N818 - a value of the model: whether it fits is the question
    """The driver has too little left for a segment."""

    def __init__(self, *, requested: int, segment: int, allocated: int, reserved: int, capacity: int) -> None:
        super().__init__(f"{requested} bytes asked for, {capacity - reserved} of {capacity} left")
        self.requested_bytes = requested
        self.segment_bytes = segment
        self.allocated_bytes = allocated
        self.reserved_bytes = reserved
        self.capacity_bytes = capacity

    @property
    def is_fragmentation(self) -> bool:
        """Whether the request would have fitted, had the free bytes lain together."""
        return self.allocated_bytes + self.requested_bytes <= self.capacity_bytes


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, in use or free."""

    address: int
    size: int
    pool: "_Pool"
    previous: "Block | None" = None
    following: "Block | None" = None
    is_free: bool = False

    def __lt__(self, other: "Block") -> bool:
        return (self.size, self.address) < (other.size, other.address)


@dataclass(slots=True, eq=False)
class _Pool:
    """Free blocks of one kind, the smallest first, then the lowest address."""

    is_small: bool
    free: list[Block] = field(default_factory=list)
    tail: Block | None = None
    """The last block of the one growing range, with expandable segments."""

    @property
    def spare_at_end(self) -> int:
        return self.tail.size if self.tail is not None and self.tail.is_free else 0

    def take(self, size: int) -> Block | None:
        """The smallest free block that fits."""
        place = bisect_left(self.free, (size, -1), key=lambda block: (block.size, block.address))
        return self.free.pop(place) if place < len(self.free) else None

    def give(self, block: Block) -> None:
        block.is_free = True
        insort(self.free, block)

    def drop(self, block: Block) -> None:
        del self.free[bisect_left(self.free, block)]


class CachingAllocator:
    """Allocates and frees as torch would on one device and stream.

    Laws: blocks in use and free blocks tile what is reserved; two free neighbours never stand side by side; a block is
    never smaller than its request; ``reserved_bytes`` shrinks only when cached segments are released.

    Args:
        settings: The allocator's.
        capacity_bytes: What the driver has to give; None has no end.
    """

    def __init__(self, settings: AllocatorSettings | None = None, *, capacity_bytes: int | None = None) -> None:
        self.settings = settings or AllocatorSettings()
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0
        """Sum of the blocks in use, as ``torch.cuda.memory_allocated``: what an unsplit block has to spare counts."""
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self._pools = {True: _Pool(is_small=True), False: _Pool(is_small=False)}
        self._next_address = 0

    @property
    def free_bytes(self) -> int:
        """What is reserved and in no use."""
        return self.reserved_bytes - self.allocated_bytes

    def allocate(self, num_bytes: int) -> Block | None:
        """A block for a tensor's storage; None for an empty one.

        Raises:
            DeviceFull: there is no room, even after the cached segments were released.
        """
        if num_bytes == 0:
            return None
        size = round_size(num_bytes)
        pool = self._pools[size <= SMALL_REQUEST_BYTES]
        block = pool.take(size) or self._reserve(size, pool)
        self._split(block, size)
        block.is_free = False
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block | None) -> None:
        """Take back what ``allocate`` gave.

        Raises:
            ValueError: it was taken back before.
        """
        if block is None:
            return
        if block.is_free:
            raise ValueError(f"the block at {block.address} is free already")
        self.allocated_bytes -= block.size
        for neighbour in (block.previous, block.following):
            if neighbour is not None and neighbour.is_free:
                block.pool.drop(neighbour)
                block = _join(block, neighbour)
        block.pool.give(block)

    def empty_cache(self) -> None:
        """Return to the driver every segment of which nothing is in use."""
        for pool in self._pools.values():
            for block in [one for one in pool.free if one.previous is None and one.following is None]:
                pool.drop(block)
                self.reserved_bytes -= block.size
                if pool.tail is block:
                    pool.tail = None

    def _reserve(self, size: int, pool: _Pool) -> Block:
        """A free block of at least ``size``, from the driver."""
        if self.settings.expandable_segments:
            return self._grow(size, pool)
        self._take_from_driver(size, segment_size(size, self.settings))
        block = Block(self._next_address, segment_size(size, self.settings), pool)
        self._next_address += block.size + MIN_BLOCK_BYTES  # segments are no neighbours
        return block

    def _grow(self, size: int, pool: _Pool) -> Block:
        """The range's last block, made long enough by whole pages."""
        page = SMALL_SEGMENT_BYTES if pool.is_small else self.settings.large_segment_bytes
        mapped = -(-(size - pool.spare_at_end) // page) * page
        if self._is_over(mapped):
            self.empty_cache()  # which may take the range's end
            mapped = -(-(size - pool.spare_at_end) // page) * page
        self._take_from_driver(size, mapped)
        last, spare = pool.tail, pool.spare_at_end
        if last is not None and spare:
            pool.drop(last)
            last.size += mapped
            return last
        start = 2**60 * (not pool.is_small) if last is None else last.address + last.size
        pool.tail = Block(start, mapped, pool, previous=last)
        if last is not None:
            last.following = pool.tail
        return pool.tail

    def _take_from_driver(self, size: int, segment: int) -> None:
        if self._is_over(segment):
            self.empty_cache()
        if self._is_over(segment):
            raise DeviceFull(
                requested=size,
                segment=segment,
                allocated=self.allocated_bytes,
                reserved=self.reserved_bytes,
                capacity=self.capacity_bytes or 0,
            )
        self.reserved_bytes += segment
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _is_over(self, segment: int) -> bool:
        return self.capacity_bytes is not None and self.reserved_bytes + segment > self.capacity_bytes

    def _split(self, block: Block, size: int) -> None:
        """Leave to the pool what is worth it; a large pool's remainder up to 1 MiB stays with the block."""
        remainder = block.size - size
        if not self._is_worth(remainder, block.pool):
            return
        rest = Block(block.address + size, remainder, block.pool, previous=block, following=block.following)
        if rest.following is not None:
            rest.following.previous = rest
        if block.pool.tail is block:
            block.pool.tail = rest
        block.size, block.following = size, rest
        block.pool.give(rest)

    def _is_worth(self, remainder: int, pool: _Pool) -> bool:
        if pool.is_small or self.settings.expandable_segments:
            return remainder >= MIN_BLOCK_BYTES
        return remainder > SMALL_REQUEST_BYTES


def round_size(num_bytes: int) -> int:
    """The size of the block a request needs: whole 512 bytes."""
    return max(MIN_BLOCK_BYTES, -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)


def segment_size(block_size: int, settings: AllocatorSettings | None = None) -> int:
    """What is asked of the driver for a block that no cached one serves."""
    if block_size <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_size < MIN_LARGE_SEGMENT_BYTES:
        return (settings or AllocatorSettings()).large_segment_bytes
    return -(-block_size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def _join(block: Block, neighbour: Block) -> Block:
    """One block of two neighbours."""
    first, second = (block, neighbour) if block.address < neighbour.address else (neighbour, block)
    first.size += second.size
    first.following = second.following
    if second.following is not None:
        second.following.previous = first
    if second.pool.tail is second:
        second.pool.tail = first
    return first

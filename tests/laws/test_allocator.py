"""Laws of the caching allocator's model, over random requests and releases."""

from contextlib import suppress
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ampwise.estimate.allocator import AllocatorSettings, CachingAllocator, DeviceFull, round_size

sizes = st.integers(0, 2**20) | st.integers(0, 2**26)
actions = st.lists(st.tuples(sizes, st.integers(0, 3), st.integers(0, 10**6)), max_size=60)
settings = st.builds(AllocatorSettings, expandable_segments=st.booleans())


def _all_blocks(allocator):
    """Free blocks and all their neighbours, by address."""
    found = {}
    waiting = [block for pool in allocator._pools.values() for block in pool.free]
    while waiting:
        block = waiting.pop()
        if id(block) not in found:
            found[id(block)] = block
            waiting += [one for one in (block.previous, block.following) if one is not None]
    return sorted(found.values(), key=lambda block: (block.pool.is_small, block.address))


@given(actions, settings, st.none() | st.integers(2**21, 2**28))
def test_blocks_tile_what_is_reserved(steps, chosen, capacity):
    allocator = CachingAllocator(chosen, capacity_bytes=capacity)
    live = []
    for size, kind, pick in steps:
        if kind and live:
            _, block = live.pop(pick % len(live))
            allocator.free(block)
        elif kind == 3:
            allocator.empty_cache()
        else:
            with suppress(DeviceFull):
                live.append((size, allocator.allocate(size)))
        used = [block for _, block in live if block is not None]
        assert allocator.allocated_bytes == sum(block.size for block in used)
        assert all(block.size >= round_size(asked) for asked, block in live if block is not None)
        free = [block for pool in allocator._pools.values() for block in pool.free]
        assert allocator.free_bytes == sum(block.size for block in free)
        assert all(block.is_free for block in free)
        assert not any(block.following is not None and block.following.is_free for block in free)
        assert capacity is None or allocator.reserved_bytes <= capacity
        by_place = _all_blocks(allocator)
        for first, second in pairwise(by_place):
            assert first.pool is not second.pool or first.address + first.size <= second.address
    assert allocator.peak_allocated_bytes <= allocator.peak_reserved_bytes
    for _, block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0

import pytest

from ampwise.estimate.allocator import AllocatorSettings, CachingAllocator, DeviceFull, round_size, segment_size

MIB = 2**20
EXPANDABLE = AllocatorSettings(expandable_segments=True)


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
    ],
)
def test_requests_become_blocks_and_segments_of_torchs_sizes(asked, block, segment):
    assert round_size(asked) == block
    assert segment_size(block) == segment
    allocator = CachingAllocator()
    allocator.allocate(asked)
    assert allocator.reserved_bytes == segment


def test_a_large_block_keeps_a_remainder_of_a_mebibyte_and_counts_it():
    allocator = CachingAllocator()
    allocator.allocate(11 * MIB)
    assert allocator.allocated_bytes == 12 * MIB  # all of its segment
    allocator.allocate(11 * MIB - 512)
    assert allocator.allocated_bytes == 23 * MIB - 512  # split: a mebibyte and 512 bytes were left


def test_the_smallest_block_that_fits_is_taken():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (30, 14, 50)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(13 * MIB) is blocks[1]
    assert allocator.reserved_bytes == 94 * MIB


def test_an_empty_tensor_takes_nothing():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(0))
    assert allocator.reserved_bytes == 0


def test_freed_neighbours_become_one_block_again():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(2 * MIB) for _ in range(10)]
    assert allocator.reserved_bytes == 20 * MIB
    for block in (*blocks[::2], *blocks[1::2]):
        allocator.free(block)
    allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_a_block_is_freed_once():
    allocator = CachingAllocator()
    block = allocator.allocate(1)
    allocator.free(block)
    with pytest.raises(ValueError, match="free already"):
        allocator.free(block)


def test_cached_segments_are_released_before_the_device_is_full():
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(90 * MIB)
    assert allocator.reserved_bytes == 90 * MIB


def test_a_full_device_says_what_was_missing():
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    allocator.allocate(90 * MIB)
    with pytest.raises(DeviceFull) as full:
        allocator.allocate(20 * MIB)
    assert not full.value.is_fragmentation
    assert (full.value.requested_bytes, full.value.allocated_bytes) == (20 * MIB, 90 * MIB)


def fragmented(settings: AllocatorSettings) -> CachingAllocator:
    """Every second of 2 MiB blocks is free."""
    allocator = CachingAllocator(settings, capacity_bytes=100 * MIB)
    blocks = [allocator.allocate(2 * MIB) for _ in range(50)]
    for block in blocks[::2]:
        allocator.free(block)
    return allocator


def test_fragments_that_together_would_do_are_told_from_a_full_device():
    with pytest.raises(DeviceFull) as full:
        fragmented(AllocatorSettings()).allocate(40 * MIB)
    assert full.value.is_fragmentation


def test_expandable_segments_grow_by_pages_from_what_is_free_at_the_end():
    allocator = CachingAllocator(EXPANDABLE)
    first, second = allocator.allocate(15 * MIB), allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 60 * MIB  # 5 MiB at the end of the first page, and two pages more
    allocator.free(second)
    allocator.allocate(45 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    allocator.free(first)


def test_an_expandable_range_that_is_all_free_goes_back_to_the_driver():
    allocator = CachingAllocator(EXPANDABLE, capacity_bytes=100 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
    assert allocator.allocate(100 * MIB) is not None

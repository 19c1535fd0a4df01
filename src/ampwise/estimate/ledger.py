"""The life of every storage on the imaginary GPU, as the caching allocator would serve it."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from ampwise.estimate.allocator import Block, CachingAllocator
from ampwise.estimate.spot import Spot


@dataclass(slots=True, kw_only=True, eq=False)
class Storage:
    """One storage: how large, born where, and when it came and went."""

    num_bytes: int
    spot: Spot
    is_cast: bool = False
    """A copy in another format that autocast made."""
    is_workspace: bool = False
    is_kernels_own: bool = False
    """What a kernel takes for itself: no tensor shows it."""
    node: int | None = None
    """The autograd node, by its number, that ran when it was born; None outside of a backward pass."""
    is_from_host: bool = False
    """Copied to the GPU from the host: data, or parameters on their way there."""
    born: int
    """Counts births and deaths from the start of the run."""
    died: int | None = None
    block: Block | None = field(default=None, repr=False)
    """What the allocator gave for it, while it is alive."""
    block_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """When something began: the count of births and deaths, and the storages then alive."""

    time: int
    label: str


class Ledger:
    """Every storage the imaginary GPU ever held, and what the allocator made of them.

    Law: a storage is alive at time ``t`` if it was born before ``t`` and has not died by then; the sum of the blocks of
    those alive is what the allocator has given out.
    """

    def __init__(self, allocator: CachingAllocator | None = None) -> None:
        self.allocator = allocator or CachingAllocator()
        self.storages: list[Storage] = []
        self.moments: list[Moment] = []
        self.convolutions: list[tuple[int, int]] = []
        """When a convolution ran, and what it takes at most while it does; no block was given out for it."""
        self.emptied: set[int] = set()
        """When the script handed the cache back to the driver."""
        self.time = 0
        self.live_bytes = 0
        """Of tensors, as they asked for."""
        self.peak_live_bytes = 0
        self.peak_time = 0
        """Just after the birth that made the allocator's peak."""
        self.peak_spot: Spot | None = None
        self._alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], Storage]] = {}

    def see(
        self,
        storage: torch.UntypedStorage,
        where: Callable[[], Spot],
        *,
        node: Callable[[], int | None] = lambda: None,
        is_cast: bool = False,
        is_from_host: bool = False,
    ) -> None:
        """Take note of ``storage`` if it is new, and of its new size if it was resized.

        Args:
            storage: Of a tensor on the GPU.
            where: Where it was made; asked only if it is new, as ``node`` is.
            node: The autograd node that runs.
            is_cast: See ``Storage``.
            is_from_host: See ``Storage``.
        """
        key, num_bytes = id(storage), storage.nbytes()
        known = self._alive.get(key)
        if known is not None:
            if known[1].num_bytes != num_bytes:
                self._die(key)
            else:
                return
        made = self._bear(num_bytes, where())
        made.node, made.is_cast, made.is_from_host = node(), is_cast, is_from_host
        self._alive[key] = (weakref.ref(storage, lambda _, key=key: self._die(key)), made)

    def resized(self, storage: torch.UntypedStorage, where: Callable[[], Spot]) -> None:
        """Take note that ``storage`` may have another size now; of one that is not on the GPU nothing is noted."""
        if id(storage) in self._alive:
            self.see(storage, where)

    def pass_through(self, sizes: Iterable[int], spot: Spot) -> None:
        """Take note of what a kernel allocates for itself and frees before it returns."""
        made = [self._bear(size, spot) for size in sizes]
        for one in made:
            one.is_kernels_own = True
            self._end(one)

    def keep(self, num_bytes: int, spot: Spot) -> None:
        """Take note of a workspace, which is never given back."""
        self._bear(num_bytes, spot).is_workspace = True
        self.live_bytes -= num_bytes

    def convolve(self, num_bytes: int) -> None:
        """Take note of a convolution that may take so much beside its tensors."""
        if num_bytes:
            self.convolutions.append((self.time, num_bytes))

    def empty_cache(self) -> None:
        """Hand the allocator's cache back to the driver."""
        self.emptied.add(self.time)
        self.allocator.empty_cache()

    def mark(self, label: str) -> None:
        """Remember that something begins now."""
        self.moments.append(Moment(self.time, label))

    def of(self, tensor: torch.Tensor) -> Storage | None:
        """The storage of a tensor of the imaginary GPU; None of any other."""
        known = self._alive.get(id(tensor.untyped_storage()))
        return known[1] if known is not None else None

    def alive_at(self, time: int) -> list[Storage]:
        """The storages alive at that time."""
        return [one for one in self.storages if one.born < time and (one.died is None or one.died >= time)]

    def alive(self) -> list[Storage]:
        """The storages of tensors alive now."""
        return [one for _, one in self._alive.values()]

    def _bear(self, num_bytes: int, spot: Spot) -> Storage:
        storage = Storage(num_bytes=num_bytes, spot=spot, born=self.time)
        self.time += 1
        before = self.allocator.peak_allocated_bytes
        storage.block = self.allocator.allocate(num_bytes)
        storage.block_bytes = 0 if storage.block is None else storage.block.size
        if self.allocator.peak_allocated_bytes > before:
            self.peak_time, self.peak_spot = self.time, spot
        self.storages.append(storage)
        self.live_bytes += num_bytes
        return storage

    def _die(self, key: int) -> None:
        known = self._alive.pop(key, None)
        if known is not None:
            self._end(known[1])

    def _end(self, storage: Storage) -> None:
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)
        self.live_bytes -= storage.num_bytes
        storage.died = self.time
        self.time += 1
        self.allocator.free(storage.block)
        storage.block = None

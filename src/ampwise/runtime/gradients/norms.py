"""Takes the norms of gradients, on several threads where that is worth it."""

from collections.abc import Sequence
from threading import Thread

import torch
from torch import Tensor

from ampwise.compat.dispatch import is_watched
from ampwise.compat.fused_step import norms_of as norms_in_this_thread
from ampwise.interpose.internal import internal

BYTES_A_THREAD = 4 << 20
"""torch takes the norm of a tensor on one thread, some 0.15 ms for so many; to start another thread takes 0.05 ms."""


def norms_of(grads: Sequence[Tensor]) -> Tensor:
    """The 2-norm of each tensor on the CPU, in one tensor; bit for bit the same on any number of threads."""
    num_threads = min(torch.get_num_threads(), sum(grad.nbytes for grad in grads) // BYTES_A_THREAD)
    if num_threads < 2 or is_watched():
        return norms_in_this_thread(grads)
    shares = split(grads, num_threads)
    norms: list[Tensor | None] = [None] * len(shares)

    def take(place: int) -> None:
        with torch.no_grad():
            norms[place] = norms_in_this_thread(shares[place])

    threads = [Thread(target=take, args=(place,), daemon=True) for place in range(1, len(shares))]
    for one in threads:
        with internal():
            one.start()
    take(0)
    for one in threads:
        one.join()
    found = [one for one in norms if one is not None]
    return torch.cat(found) if len(found) == len(shares) else norms_in_this_thread(grads)


def split(grads: Sequence[Tensor], count: int) -> list[list[Tensor]]:
    """The tensors in order, in at most ``count`` parts of about the same size, none of them empty."""
    total = sum(grad.nbytes for grad in grads)
    parts: list[list[Tensor]] = [[] for _ in range(count)]
    before = 0
    for grad in grads:
        middle = before + grad.nbytes / 2
        parts[min(int(count * middle / total), count - 1)].append(grad)
        before += grad.nbytes
    return [part for part in parts if part]

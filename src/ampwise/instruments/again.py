"""What computing something a second time must leave as it was: random numbers and running statistics."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn


def random_state() -> list[torch.Tensor]:
    """Where torch's random number generators stand: the CPU's, then each GPU's."""
    on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_cuda]


def set_random_state(state: list[torch.Tensor]) -> None:
    """Put the generators back to where ``random_state`` found them."""
    torch.set_rng_state(state[0])
    if state[1:]:
        torch.cuda.set_rng_state_all(state[1:])


@contextmanager
def kept_random_state() -> Generator[None]:
    """What draws numbers within it leaves the generators where they were."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@contextmanager
def kept_buffers(module: nn.Module) -> Generator[None]:
    """Running statistics must not move twice."""
    saved = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)

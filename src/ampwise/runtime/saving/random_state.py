"""The state of every random generator a training loop draws from, as plain data."""

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def take_random_state() -> dict[str, Any]:
    """The state of Python's, torch's and, where they are in use, numpy's and the CUDA devices' generators."""
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(internal), gauss], "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Put back what ``take_random_state`` took; the state of devices this machine lacks is left out."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["torch"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    if torch.cuda.is_available():
        for index, one in zip(range(torch.cuda.device_count()), state.get("cuda", ()), strict=False):
            torch.cuda.set_rng_state(one, index)

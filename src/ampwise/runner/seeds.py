"""Gives runs with the same number the same random numbers, and runs with different numbers different ones."""

import random
import sys
from contextlib import ExitStack
from typing import Any

from ampwise.runner.imports import after_import

START = 20_260_101
"""The seed of a script that sets none."""


def seed_python(repeat: int) -> None:
    """Seed Python's own generator with ``START + repeat``."""
    random.seed(START + repeat)


def seed_run(repeat: int) -> ExitStack:
    """Seed torch's and NumPy's generators with ``START + repeat``; add ``repeat`` to each seed the script sets.

    Modules that are not imported yet are seeded when they are. Closing the returned stack ends the adding.
    ``torch.Generator.manual_seed`` cannot be intercepted: a generator of the script's own draws the same numbers
    in every repeat.
    """
    from ampwise.interpose.seeding import NUMPY_ROWS, PYTHON_ROWS, TORCH_ROWS, shift_seeds

    stack = ExitStack()
    for row in PYTHON_ROWS:
        stack.callback(shift_seeds(row, repeat))

    def seed_numpy() -> None:
        numpy_random: Any = sys.modules["numpy.random"]
        numpy_random.seed(START + repeat)
        for row in NUMPY_ROWS:
            stack.callback(shift_seeds(row, repeat))

    def seed_torch() -> None:
        import torch

        torch.manual_seed(START + repeat)
        for row in TORCH_ROWS:
            stack.callback(shift_seeds(row, repeat))

    stack.callback(after_import("numpy.random", seed_numpy))
    stack.callback(after_import("torch", seed_torch))
    return stack

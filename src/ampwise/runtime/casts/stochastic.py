"""Rounds fp32 to bf16 or fp16 by chance, with chances that every rank and every repetition has alike."""

from typing import Any

import torch
from torch import Tensor

from ampwise._base.errors import CannotRunError
from ampwise.emulate.rounding import round_to

COUNT = "num_rounded_steps"
"""The key of the number of steps in an optimizer's first group, and so in its ``state_dict``."""
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_STRIDE = 1_000_003
"""Between the seeds of two runs, so that their steps do not share any."""


class Chance:
    """The random numbers of one optimizer's roundings.

    Args:
        seed: another gives other chances.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._number = 0
        self._generators: dict[torch.device, torch.Generator] = {}

    def begin(self, group: dict[str, Any]) -> None:
        """Begin a step's roundings, whose number is kept in ``group``.

        Raises:
            CannotRunError: a CUDA graph is being captured, which would replay the same chances.
        """
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise CannotRunError(
                'updates = "stochastic" cannot be captured: a graph replays its chances; use "master", or no capture'
            )
        self._number = int(group.get(COUNT, 0))
        group[COUNT] = self._number + 1
        self._generators.clear()

    def rounded(self, wide: Tensor, dtype: torch.dtype) -> Tensor:
        """``wide`` in ``dtype``: the upper neighbour with the probability of the distance from the lower one."""
        generator = self._generators.get(wide.device)
        if generator is None:
            generator = torch.Generator(wide.device).manual_seed(self._seed * _STRIDE + self._number)
            self._generators[wide.device] = generator
        return round_to(wide, _NAMES[dtype], mode="stochastic", generator=generator).to(dtype)

"""Measures what operators would do in a low format that are called outside of all modules: those of a loss."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ampwise.compat.autograd import is_inside_backward
from ampwise.compat.functions import writes_in_place
from ampwise.compat.tree import map_tensors
from ampwise.instruments.again import random_state, set_random_state
from ampwise.instruments.alone import fear, floats_in
from ampwise.instruments.tally import Held, OutsideTally
from ampwise.observe.dtypes import dtype_name
from ampwise.observe.frames import user_line
from ampwise.observe.functions import operator_spelt
from ampwise.observe.statistics import amax
from ampwise.records.sensitivity import OutsideSensitivity, RangeFault


class Outside:
    """The operators outside of all modules, each computed twice more from the same operands.

    Args:
        low: The context in which they compute in the low format.
        held: In which dtypes their operands would be.
    """

    def __init__(self, low: Callable[[], AbstractContextManager[Any]], held: Held) -> None:
        self._low = low
        self._held = held
        self._tallies: dict[str, OutsideTally] = {}

    def record(self) -> tuple[OutsideSensitivity, ...]:
        """What was measured so far; waits for the device."""
        return tuple(tally.finished() for tally in self._tallies.values())

    @staticmethod
    def operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The operator that is to be measured, as a rule names it; None for what is no part of a loss."""
        if not torch.is_grad_enabled() or is_inside_backward() or "out" in kwargs or writes_in_place(func):
            return None
        name = operator_spelt(func)
        return name if name is not None and any(one.requires_grad for one in floats_in((args, kwargs))) else None

    def measure(
        self, op: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, *, step: int
    ) -> None:
        """Compute what ``result`` came of in the low format and in fp32."""
        random = random_state()
        with torch.no_grad():
            with self._low():
                low = func(*map_tensors(self._held.lowered, args), **map_tensors(self._held.lowered, kwargs))
            set_random_state(random)
            high = func(*map_tensors(self._held.rounded, args), **map_tensors(self._held.rounded, kwargs))
        own, mine, other = floats_in(result), floats_in(low), floats_in(high)
        tally = self._tallies.setdefault(op, OutsideTally(op))
        tally.errors.num_calls += 1
        if tally.errors.fault is None:
            tally.errors.fault = _fault(op, mine, other, floats_in((args, kwargs)), step=step)
        tally.errors.add(own, mine, other)
        self._held.remember(own, mine)


def _fault(op: str, low: list[Tensor], high: list[Tensor], given: list[Tensor], *, step: int) -> RangeFault | None:
    bad = next((one for one in low if not math.isfinite(amax(one).item())), None)
    sizes = [amax(one).item() for one in (*high, *given)]
    if bad is None or not all(map(math.isfinite, sizes)):
        return None
    line = user_line(2)
    return RangeFault(
        op=f"aten.{op}",
        format=dtype_name(bad.dtype),
        amax=max(sizes, key=fear),
        step=step,
        file=line.shown_file if line is not None else None,
        line=line.line if line is not None else None,
    )

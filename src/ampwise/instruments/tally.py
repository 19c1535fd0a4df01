"""Adds up what the low format does to the numbers that a module gives, or an operator outside of all modules."""

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from ampwise.instruments.alone import Alone, fear
from ampwise.instruments.closeness import num_distinct, relative_error, rows_of
from ampwise.instruments.isolate import Isolated
from ampwise.interpose.internal import internal
from ampwise.observe.modules import ModuleName
from ampwise.observe.statistics import amax
from ampwise.records.sensitivity import ModuleSensitivity, OutsideSensitivity, RangeFault

_TOGETHER: Final = 0.05
"""Rows of few numbers may be equal after rounding; those are a rounding away from fp32."""


@dataclass(slots=True)
class Errors:
    """How far numbers are from fp32's, and what that does to the loss."""

    num_calls: int = 0
    scores: list[Tensor] = field(default_factory=list[Tensor])
    has_gradient: bool = False
    """One of the outputs has one, but no error."""
    relative: float = 0.0
    amax: float = 0.0
    fell_together: bool = False
    fault: RangeFault | None = None

    @property
    def score(self) -> float | None:
        """Sum of (gradient x error)^2 so far; None where no gradient came back. Waits for the device."""
        return math.fsum(score.item() for score in self.scores) if self.scores or self.has_gradient else None

    def add(self, own: Sequence[Tensor], low: Sequence[Tensor], high: Sequence[Tensor]) -> None:
        """Add what the loop made itself, and in the low format and fp32; its gradients will weigh the error."""
        for tensor, mine, other in zip(own, low, high, strict=False):
            if mine.shape == other.shape == tensor.shape:
                self._add(tensor, mine.float(), other.float())

    def _add(self, tensor: Tensor, mine: Tensor, other: Tensor) -> None:
        self.amax = max(self.amax, amax(other).item(), key=fear)
        if torch.equal(mine, other):
            self.has_gradient |= tensor.requires_grad
            return
        relative = relative_error(mine, other)
        self.relative = max(self.relative, relative, key=fear)
        self.fell_together |= relative >= _TOGETHER and _fell_together(mine, other)
        if tensor.requires_grad:
            tensor.register_hook(self._scored(mine - other))

    def _scored(self, error: Tensor) -> Callable[[Tensor], None]:
        def keep(gradient: Tensor) -> None:
            with internal():
                self.scores.append((gradient.detach().float() * error).square().sum())

        return keep


@dataclass(slots=True)
class Tally:
    """What was measured of one module so far."""

    name: ModuleName
    aliases: tuple[str, ...]
    errors: Errors = field(default_factory=Errors)
    calls_modules: bool = False
    num_decisions: int = 0
    num_other_decisions: int = 0
    operators: dict[str, None] = field(default_factory=dict[str, None])
    num_operators: int = 0
    isolated: list[Isolated] = field(default_factory=list[Isolated])
    isolated_step: int = -1
    """The last in which operators at fault were looked for."""

    def add_decisions(self, low: Alone, high: Alone) -> None:
        """Count what came out otherwise."""
        for one, same in zip(low.decisions, high.decisions, strict=False):
            if one.shape == same.shape:
                self.num_decisions += one.numel()
                self.num_other_decisions += int((one != same).sum())

    def finished(self) -> ModuleSensitivity:
        """As a record's value; waits for the device."""
        errors = self.errors
        return ModuleSensitivity(
            module=self.name.path,
            module_kind=self.name.kind,
            aliases=tuple(self.name.path.removesuffix(self.name.inner) + alias for alias in self.aliases),
            calls_modules=self.calls_modules,
            num_calls=errors.num_calls,
            score=errors.score,
            relative=errors.relative,
            amax=errors.amax,
            num_decisions=self.num_decisions,
            num_other_decisions=self.num_other_decisions,
            fell_together=errors.fell_together,
            fault=errors.fault,
            operators=tuple(self.operators),
            at_fault=self._at_fault(),
            left=max((one.left for one in self.isolated), default=0.0),
        )

    def _at_fault(self) -> tuple[str, ...]:
        """The operators at fault in any call, if there are some in each."""
        if not all(one.operators for one in self.isolated):
            return ()
        found = dict.fromkeys(op for one in self.isolated for op in one.operators)
        return tuple(found) if len(found) < self.num_operators else ()


@dataclass(slots=True)
class OutsideTally:
    """What was measured so far of an operator outside of all modules."""

    op: str
    errors: Errors = field(default_factory=Errors)

    def finished(self) -> OutsideSensitivity:
        """As a record's value; waits for the device."""
        errors = self.errors
        return OutsideSensitivity(
            op=self.op,
            num_calls=errors.num_calls,
            score=errors.score,
            relative=errors.relative,
            fault=errors.fault,
        )


class Held:
    """In which dtype the low format's run would hold the tensors that the loop makes in fp32."""

    def __init__(self) -> None:
        self._dtypes: dict[int, tuple[weakref.ref[Tensor], torch.dtype]] = {}

    def remember(self, own: Sequence[Tensor], low: Sequence[Tensor]) -> None:
        """Take the dtypes of ``low``, which are finite, for those of ``own``."""
        for one, made in zip(own, low, strict=False):
            if made.dtype is not one.dtype and bool(made.isfinite().all()):
                self._dtypes[id(one)] = (weakref.ref(one), made.dtype)

    def forget(self) -> None:
        """Forget all of them: a step is over."""
        self._dtypes.clear()

    def lowered(self, tensor: Tensor) -> Tensor:
        """A copy, in the dtype that the low format's run would hold it in."""
        dtype = self._dtype_of(tensor)
        return tensor.detach().clone() if dtype is None else tensor.detach().to(dtype)

    def rounded(self, tensor: Tensor) -> Tensor:
        """The same numbers in the tensor's own dtype."""
        return self.lowered(tensor).to(tensor.dtype)

    def _dtype_of(self, tensor: Tensor) -> torch.dtype | None:
        reference, dtype = self._dtypes.get(id(tensor), (None, None))
        return dtype if reference is not None and reference() is tensor else None


def _fell_together(mine: Tensor, other: Tensor) -> bool:
    rows = [rows_of(one) for one in (mine, other)]
    if rows[0] is None or rows[1] is None:
        return False
    few, many = map(num_distinct, rows)
    return few is not None and many is not None and many >= 4 and 2 * few <= many

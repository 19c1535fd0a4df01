"""Which dtypes a training loop computed in, and which casts that took."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.site import Site


class CastOrigin(StrEnum):
    """Who made a cast."""

    AUTOCAST = "autocast"
    """autocast, or ampwise's cast lists, for an operator that follows."""
    BACKWARD = "backward"
    """autograd, which brings a gradient back to the dtype of the tensor that was cast."""
    SCRIPT = "script"
    """The script's own ``.to(dtype)``, or a module's or optimizer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCalls:
    """How often one operator of one module ran in one dtype."""

    __pydantic_config__: ClassVar = CHECKS

    site: Site
    """Phase, module and operator; no line."""
    dtype: str
    """The dtypes of its floating-point inputs: ``bf16``, or ``bf16+fp32`` where they differ."""
    result: str
    """The dtype of its first floating-point result; empty where it has none."""
    count: int
    ms: float | None
    """Host time in the operator, all calls; None where a device computed on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CastPlace:
    """Casts from one dtype to another at one place."""

    __pydantic_config__: ClassVar = CHECKS

    site: Site
    """Module and phase; the operator it was made for is ``reason``."""
    origin: CastOrigin
    source: str
    """The dtype cast from: ``fp32``."""
    target: str
    """The dtype cast to: ``bf16``."""
    reason: str | None
    """torch's name of the operator that ran next and took the result: ``aten.mm``; None where none did."""
    count: int
    bytes: int
    """Read and written, all calls."""
    ms: float | None
    """Host time, all calls; None where a device computed on its own."""
    expanded_bytes: int = 0
    """Written by casts of expanded tensors beyond what the tensor's storage held: the cast repeats every number.

    Not counted in backward, where the gradient of every sum is an expanded tensor.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedCast:
    """A weight that was cast to the same dtype more than once in a step."""

    __pydantic_config__: ClassVar = CHECKS

    parameter: str
    """As ``named_parameters`` calls it from its root."""
    target: str
    num_per_step: float
    """Casts a step, on average; 1 is what the cast cache makes of it."""
    bytes: int
    """Written by the casts beyond the first of each step, all steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """An operator that was given tensors of different floating-point dtypes."""

    __pydantic_config__: ClassVar = CHECKS

    site: Site
    dtypes: tuple[str, ...]
    """In the order of its arguments, each once."""
    result: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CastRecord:
    """What ran in which dtype in the steps watched; each list the largest first."""

    __pydantic_config__: ClassVar = CHECKS

    steps: tuple[int, ...]
    """Indices of the steps watched."""
    calls: tuple[OperatorCalls, ...]
    casts: tuple[CastPlace, ...]
    repeated: tuple[RepeatedCast, ...] = ()
    promotions: tuple[Promotion, ...] = ()
    num_operators: int
    """Operators that computed something; views are not counted."""
    operator_bytes: int
    """What they read and wrote, by the sizes of their tensors."""
    operator_ms: float | None
    """Host time in them; None where a device computed on its own."""
    cost_ms: float
    """What watching added to each step watched: an estimate from the operators seen."""
    note: str | None = None
    """Why it is incomplete; None where it is not."""

    @property
    def num_casts(self) -> int:
        """Casts in the steps watched."""
        return sum(cast.count for cast in self.casts)

    @property
    def byte_share(self) -> float:
        """Which share of the bytes that operators read and wrote was the casts'."""
        return sum(cast.bytes for cast in self.casts) / self.operator_bytes if self.operator_bytes else 0.0

    @property
    def time_share(self) -> float | None:
        """Which share of the operators' time was the casts'; None where a device computed on its own."""
        if not self.operator_ms:
            return None
        return sum(cast.ms or 0.0 for cast in self.casts) / self.operator_ms

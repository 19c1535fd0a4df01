"""Where infinities and NaNs came from: the operator whose inputs were still finite, its inputs' ranges, its place."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.site import Site


class NonFiniteKind(StrEnum):
    """What an operator made of finite numbers."""

    INF = "inf"
    """Infinities, no NaN."""
    NAN = "nan"
    """NaN, with or without infinities."""


class FoundBy(StrEnum):
    """How an origin was found."""

    TRACE = "trace"
    """Every operator of the step was watched as it ran."""
    REPLAY = "replay"
    """The step's forward and backward were run again in eager mode, with the same inputs and random numbers."""
    GUARD = "guard"
    """Only the check of gradients and weights after the pass saw it: the operator is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One tensor that an operator took or gave."""

    __pydantic_config__: ClassVar = CHECKS

    dtype: str
    """The format as users say it (``fp16``), else torch's name (``float64``)."""
    shape: tuple[int, ...]
    minimum: float | None
    """Smallest of its finite numbers, sign included; None where none is finite or it holds none."""
    maximum: float | None
    """Largest of its finite numbers."""
    num_infinite: int = 0
    num_negative_infinite: int = 0
    """Of the infinite ones: a fault that only makes these may be a mask at work."""
    num_nan: int = 0

    @property
    def amax(self) -> float | None:
        """The largest finite magnitude."""
        if self.minimum is None or self.maximum is None:
            return None
        return max(-self.minimum, self.maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One operator that made infinities or NaN of finite numbers."""

    __pydantic_config__: ClassVar = CHECKS

    step: int
    """Index of the optimizer step it belongs to, counted from 0 as in ``StepRecord``."""
    kind: NonFiniteKind
    site: Site
    """In backward: ``op`` is the operator that ran; module and line are those of the operator whose gradient it is."""
    found_by: FoundBy
    module_kind: str | None = None
    """The module's class: ``BatchNorm1d``."""
    forward_op: str | None = None
    """In backward: the operator whose gradient was computed: ``aten.sqrt``."""
    inputs: tuple[Operand, ...] = ()
    """Tensor inputs in the operator's order, at most eight, without those it wrote to. All were finite, but for a NaN
    made of infinities that were put there on purpose, such as a row that a mask of -inf left nothing of."""
    scalars: tuple[float, ...] = ()
    """Its plain numbers in order, such as Adam's eps."""
    output: Operand | None = None
    parameter: str | None = None
    """In the optimizer, or where only a guard saw it: the parameter's path, where it is known."""
    vanished: Site | None = None
    """Where its infinities turned into finite numbers again (1 / inf = 0), the loss staying finite. Its gradient may
    still be NaN (0 times infinity); where it is not, nothing but this shows the fault."""
    num_seen: int = 1
    """How often an operator at this site did so, in all steps watched."""
    rank: int | None = None
    """The process it ran in, of several that trained together; None where one trained alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadInput:
    """A tensor that was not finite when a model was given it: no operator of the loop's own made it so."""

    __pydantic_config__: ClassVar = CHECKS

    step: int
    """Index of the optimizer step that saw it first."""
    module: str
    """The outermost module that was called with it, as in ``Site``; the owner of a parameter."""
    name: str
    """``argument 0``, the keyword, or the parameter's or buffer's own name."""
    is_parameter: bool
    """A parameter or buffer of the model, bad before its first call; else an argument."""
    value: Operand
    rank: int | None = None
    """The process that was given it, of several that trained together."""
    file: str | None = None
    """Where the model was called with it, as in ``Site``; of an argument only."""
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadOutput:
    """NaN that a model gave of finite arguments where no gradients were asked for, as in an evaluation."""

    __pydantic_config__: ClassVar = CHECKS

    step: int
    """Index of the optimizer step that came next."""
    module: str
    """The outermost module that was called, as in ``Site``."""
    value: Operand
    file: str | None = None
    """Where it was called, as in ``Site``."""
    line: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteRecord:
    """What was seen of infinities and NaN in one run."""

    __pydantic_config__: ClassVar = CHECKS

    num_steps: int
    """Steps that ended while the instrument was on."""
    origins: tuple[Origin, ...] = ()
    """One a site, in the order of the steps and operators; the first is what came first. Masks written as -inf and
    empty memory are none."""
    loss_steps: tuple[int, ...] = ()
    """Steps whose loss was not finite."""
    gradient_steps: tuple[int, ...] = ()
    """Steps with a gradient that was not finite when backward had ended, the loss scale still in it."""
    weight_steps: tuple[int, ...] = ()
    """Steps after which a weight was not finite."""
    inputs: tuple[BadInput, ...] = ()
    """What models were given that was not finite, in the steps watched in full; each once."""
    outputs: tuple[BadOutput, ...] = ()
    """NaN in evaluations, the first of each model."""
    buffers: tuple[str, ...] = ()
    """Paths of the buffers, such as running statistics, that were not finite at the end of the run."""
    buffers_before: tuple[str, ...] = ()
    """Of those that were not when their model was first called."""
    traced_steps: tuple[int, ...] = ()
    """Steps in which every operator was watched; their times say nothing."""
    replayed_steps: tuple[int, ...] = ()
    is_compiled: bool = False
    """The loop ran compiled code: what happened in it was found by replay only."""
    guard_ms: float = 0.0
    """What the check added to a step of the host's time, on average."""
    trace_ms: float = 0.0
    """What watching every operator added to a traced step of the host's time, on average; an estimate from the
    operators seen."""
    note: str | None = None
    """Why something was not seen."""

    @property
    def first(self) -> Origin | None:
        """The origin that came first."""
        return self.origins[0] if self.origins else None

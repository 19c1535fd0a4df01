"""How far a low format's numbers are from fp32's on the same batch, module by module."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleError:
    """One module's output in the low format beside the same output in fp32, one call of it."""

    __pydantic_config__: ClassVar = CHECKS

    module: str
    """Its path, as in ``Site``."""
    module_kind: str
    """Its class."""
    call: int = 0
    """Which of its calls, from 0."""
    dtype: str
    """The format its output had in the low run, as users say it."""
    num_elements: int
    relative: float
    """||low - fp32|| / ||fp32|| over all elements (Euclidean norm); infinite or NaN where one of them is, or where
    fp32's are all zero and the others not."""
    relative_input: float | None
    """The same of what it was given: an error far above its input's arose here. None where it was given no floats;
    0 where both runs were given the same."""
    cosine: float | None
    """Of the angle between the two outputs; None where one is all zero or not finite."""
    max_abs: float
    """Largest |low - fp32|."""
    amax: float
    """Largest magnitude in fp32; infinite or NaN where fp32 has the fault too."""
    num_rows: int = 0
    """Rows along the last dimension, of which each has a largest element; 0 for outputs without one."""
    num_flipped: int = 0
    """Rows whose largest element is another one in the low format."""
    num_distinct: int | None = None
    """How many of the low run's rows differ from each other; None where not counted (more than 4,096 rows)."""
    num_distinct_fp32: int | None = None
    """How many of fp32's do: rows that fell together lost what told them apart."""

    @property
    def flipped(self) -> float:
        """Share of the rows whose largest element changed."""
        return self.num_flipped / self.num_rows if self.num_rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """Decisions by an operator that returns whole numbers: ``topk``, ``argmax``, ``sort``, ``multinomial``."""

    __pydantic_config__: ClassVar = CHECKS

    module: str
    op: str
    """torch's name: ``aten.topk``."""
    file: str | None
    line: int | None
    num_decisions: int
    num_flipped: int
    """Decisions, in order, that came out otherwise in the low format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstFp32Record:
    """One batch computed twice from the same weights and random numbers: in a low format and in fp32."""

    __pydantic_config__: ClassVar = CHECKS

    format: str
    """What it was compared with fp32: ``bf16`` or ``fp16``."""
    step: int
    """Index of the optimizer step whose batch it was."""
    modules: tuple[ModuleError, ...]
    """In the order the calls returned."""
    flips: tuple[Flip, ...] = ()
    cost_ms: float = 0.0
    """What the two computations took of the host's time."""
    note: str | None = None
    """Why something was not compared."""

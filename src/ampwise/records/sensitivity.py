"""How much harm each module would do if it alone were computed in a low format; measured in an fp32 run."""

from dataclasses import dataclass
from typing import ClassVar

from ampwise.records.checks import CHECKS


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFault:
    """An operator whose result the low format cannot hold, although fp32 does."""

    __pydantic_config__: ClassVar = CHECKS

    op: str
    """torch's name: ``aten.mm``; ``aten._to_copy`` where the operand itself is beyond the format."""
    format: str
    """In which its result was infinite or NaN."""
    amax: float | None
    """The largest magnitude of the same operator's result in fp32; None where fp32 took another way."""
    step: int
    file: str | None = None
    """The user's own line."""
    line: int | None = None

    @property
    def name(self) -> str:
        """The operator as a person calls it: ``mm``."""
        return self.op.removeprefix("aten.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSensitivity:
    """What a module's own computing in the low format would do; the modules it calls compute in fp32 meanwhile."""

    __pydantic_config__: ClassVar = CHECKS

    module: str
    """Its path, as in ``Site``."""
    module_kind: str
    """Its class."""
    aliases: tuple[str, ...] = ()
    """Its other paths, where it hangs in the model more than once."""
    calls_modules: bool = False
    """Other modules were called within it."""
    num_calls: int
    score: float | None
    """Sum over its outputs of (gradient of the loss x error)^2; None where no gradient came back to them."""
    relative: float
    """||low - fp32|| / ||fp32|| of its output, of the worst call; infinite or NaN where the low one is."""
    amax: float
    """Largest magnitude of its output in fp32."""
    num_decisions: int = 0
    """Whole numbers that its operators decided by its values: ``topk``, ``argmax``, ``sort``."""
    num_other_decisions: int = 0
    """Of these, how many came out otherwise."""
    fell_together: bool = False
    """At least half of the rows that fp32 tells apart are equal in the low format."""
    fault: RangeFault | None = None
    """The first operator whose result left the format's range."""
    operators: tuple[str, ...] = ()
    """Its own operators that computed in the low format, as rules name them, in the order of their first call."""
    at_fault: tuple[str, ...] = ()
    """Those of them that take the fault away, or most of the error, when they alone are in fp32; none where it takes
    the whole module."""
    left: float = 0.0
    """The error that is left then, as a share of ``relative``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideSensitivity:
    """What an operator would do in the low format that is called outside of all modules, such as in a loss."""

    __pydantic_config__: ClassVar = CHECKS

    op: str
    """As rules name it."""
    num_calls: int
    score: float | None
    """As a module's."""
    relative: float
    fault: RangeFault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityRecord:
    """Every module of a training by itself in a low format, measured on some steps of an fp32 run."""

    __pydantic_config__: ClassVar = CHECKS

    format: str
    """The low format, as users say it."""
    steps: tuple[int, ...]
    """Those that were measured."""
    modules: tuple[ModuleSensitivity, ...]
    """In the order in which they first returned."""
    outside: tuple[OutsideSensitivity, ...] = ()
    """The operators called outside of all modules whose operands need a gradient, in the order of their first call."""
    cost_ms: float = 0.0
    """What measuring took of the host's time."""
    note: str | None = None
    """Why something was not measured."""

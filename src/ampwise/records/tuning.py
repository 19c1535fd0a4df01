"""What a search for a plan did and found: the noise it was measured against, every trial, what was verified."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from ampwise.records.checks import CHECKS
from ampwise.records.environment import Environment
from ampwise.records.run import RunRecord
from ampwise.records.sensitivity import ModuleSensitivity, OutsideSensitivity


class Outcome(StrEnum):
    """What a search came to."""

    FOUND = "found"
    """A plan whose loss is fp32's, as far as the tolerance goes."""
    OUT_OF_TIME = "out of time"
    """The same, but the search was not at its end: fewer modules in fp32 might do."""
    NOTHING_YET = "nothing yet"
    """Time was over before any plan had passed."""
    ONLY_FP32 = "only fp32"
    """No plan passes that computes anything in the low format."""
    OUTSIDE = "outside of modules"
    """Not even the plan passes that keeps every module in fp32: the fault is where no rule on modules reaches."""
    FAULT_IN_FP32 = "fault in fp32"
    """The script fails in fp32: precision cannot fix this."""

    @property
    def has_plan(self) -> bool:
        """Whether a plan was verified."""
        return self in {Outcome.FOUND, Outcome.OUT_OF_TIME}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One run of the script under a plan, beside fp32's run with the same seeds."""

    __pydantic_config__: ClassVar = CHECKS

    kept: tuple[str, ...]
    """What is in fp32: modules by their paths, of which ``""`` is the model's own computing outside of the modules that
    it calls; operators as ``matmul in attn`` and ``matmul outside of the modules``."""
    seed: int
    """Added to the script's own seeds."""
    error: float
    """In units of the tolerance: at most 1 passes. Infinite where the run failed."""
    reason: str
    """In words."""
    left_alone: str | None = None
    """The script's own mixed precision, within which the plan was tried; None where ampwise applied the default."""
    peak_tensor_bytes: int | None = None
    """As many bytes as the tensors of one step held; counted in trials that confirm."""
    ratio_time: float | None = None
    """fp32's time a step over this run's; None where the format was emulated."""

    @property
    def passes(self) -> bool:
        """Whether the loss is fp32's, as far as the tolerance goes."""
        return self.error <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRecord:
    """How far fp32 is from itself, over the second half of the steps."""

    __pydantic_config__: ClassVar = CHECKS

    level: float
    """Median size of the loss."""
    rerun: float
    """What a second run with the same seeds does to the mean loss; 0 where the script is deterministic."""
    seeds: float
    """What another seed does to it."""
    slope: float
    """What one step does to the loss."""
    allowed: float
    """What is tolerated: a difference of the mean loss."""
    num_steps: int
    """Steps that the means are over."""

    @property
    def tolerance(self) -> float:
        """What is tolerated, as a share of the loss."""
        return self.allowed / self.level if self.level else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlace:
    """What stays in the high format, and why."""

    __pydantic_config__: ClassVar = CHECKS

    name: str
    """As trials call it."""
    module: str | None
    """Its path; None for operators outside of all modules."""
    operators: tuple[str, ...] = ()
    """Of the module these alone; none for all that it computes."""
    because: str
    is_certain: bool
    """It was seen to fail in the low format by itself; it stays whatever the loss says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningState:
    """What a search has done so far: enough to go on with it."""

    __pydantic_config__: ClassVar = CHECKS

    question: dict[str, str]
    """What was asked, by name; a search goes on only with the same."""
    fp32: tuple[RunRecord, ...] = ()
    """The runs in fp32, as far as they were made: ranked, repeated, with another seed."""
    trials: tuple[TrialRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRecord:
    """A search for a plan, from its question to what was verified."""

    __pydantic_config__: ClassVar = CHECKS

    created: str
    """ISO 8601 with time zone."""
    command: tuple[str, ...]
    environment: Environment
    target: str
    """The low format."""
    emulated: bool
    outcome: Outcome
    explanation: str
    """The outcome in a sentence."""
    num_steps: int
    """Of each run: as many as were asked for, or as the script makes."""
    ranked_steps: tuple[int, ...]
    """Steps by which modules were ranked; no loss of theirs is compared."""
    noise: NoiseRecord | None = None
    plan: str | None = None
    """As TOML."""
    kept: tuple[KeptPlace, ...] = ()
    num_modules: int = 0
    trials: tuple[TrialRecord, ...] = ()
    """In order; those of another seed confirm what the search had found."""
    modules: tuple[ModuleSensitivity, ...] = ()
    """Each by itself in the low format, the most harmful first."""
    outside: tuple[OutsideSensitivity, ...] = ()
    """The operators outside of all modules, each by itself in the low format."""
    peak_tensor_bytes: int | None = None
    """Of the plan's run; as many bytes as the tensors of one step held."""
    peak_tensor_bytes_fp32: int | None = None
    ratio_time: float | None = None
    """fp32's time a step over the plan's; None where the format was emulated."""
    resumed: int = 0
    """Trials that an earlier call had made."""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

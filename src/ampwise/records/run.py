"""One training run in one precision: its steps, its memory, how it ended."""

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import ClassVar, Final

from ampwise.records.against_fp32 import AgainstFp32Record
from ampwise.records.casts import CastRecord
from ampwise.records.checks import CHECKS
from ampwise.records.compilation import CompileRecord
from ampwise.records.crash import CrashRecord
from ampwise.records.kernels import KernelRecord
from ampwise.records.layout import LayoutRecord
from ampwise.records.memory import MemoryRecord
from ampwise.records.nonfinite import NonFiniteRecord
from ampwise.records.numerics import NumericsRecord
from ampwise.records.outputs import OutputRecord
from ampwise.records.process import ProcessRecord
from ampwise.records.sensitivity import SensitivityRecord
from ampwise.records.switches import SwitchRecord
from ampwise.records.syncs import SyncRecord
from ampwise.records.usage import UsageRecord

UNTOLD: Final = "the process ended before it could say"
"""The reason of a run whose process left no record: its steps are not known, and need not have been none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step: everything since the same optimizer's step before it."""

    __pydantic_config__: ClassVar = CHECKS

    index: int
    """Counts from 0 in the order the steps ended."""
    optimizer: int
    """Which optimizer, in the order of first use; 0 where the script updates by hand."""
    loss: float | None
    """Sum of the scalar losses whose gradients this step used; None where there was none."""
    time_ms: float | None
    """Wall time since the same optimizer's last step ended; None for its first and for a step an instrument slowed."""
    ahead_ms: float | None = None
    """Of that, what passed before the first backward pass: data, forward pass. None where several optimizers step."""
    num_samples: int | None = None
    """Leading dimension of the first tensor given to the model, summed over micro-batches."""
    skipped: bool = False
    """The step was left out because its gradients were not finite."""
    scale: float | None = None
    """Loss scale the gradients were computed with; None without loss scaling."""


class RunEnd(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    """The script came to its own end."""
    STOPPED = "stopped"
    """ampwise stopped it after the steps asked for."""
    FAILED = "failed"
    """The script raised or exited with another status than 0."""
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    """The process was ended by a signal."""
    NO_STEPS = "no_steps"
    """It ended without one training step."""


class Role(StrEnum):
    """Why a run was made."""

    COMPARED = "compared"
    """Measured beside others."""
    WATCHED = "watched"
    """The run an examination is about: every instrument looks at steps of its own."""
    TRACED = "traced"
    """The same run again with every operator watched, since a value of it was not finite."""
    IN_FP32 = "in fp32"
    """The same run with autocast and the loss scale switched off."""
    UNSCALED = "unscaled"
    """The same run without its loss scale."""
    RESCUED = "rescued"
    """The same run with the suspected modules in fp32."""


OWN_REFUSAL = "ampwise"
"""The kind of a failure that is ampwise's own refusal, not the script's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run failed, in the script's own words."""

    __pydantic_config__: ClassVar = CHECKS

    kind: str
    """The exception's class, or ``exit status 3``, or ``signal 9``."""
    message: str
    """The exception's text, or the last lines the script printed to stderr."""
    where: str | None = None
    """``file:line`` of the deepest frame in the user's own code."""
    own_place: str | None = None
    """``file:line`` in ampwise's own code, where it was raised there: no fault of the script's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One of the processes that trained together."""

    __pydantic_config__: ClassVar = CHECKS

    rank: int
    end: RunEnd
    failure: Failure | None = None
    num_steps: int
    num_skipped: int
    step_ms_median: float | None = None
    ahead_ms_median: float | None = None
    """From a step's end to the next backward pass: what a rank does before others wait for its gradients."""
    peak_bytes: int | None = None
    first_bad_loss: int | None = None
    """The first step whose loss was not finite on this rank."""


_OWN_PLANS: Final = ("ampwise.PrecisionScheduler", "ampwise.apply_plan", "ampwise.autocast")
"""What is noted of a script that puts a plan into effect begins so."""
NUM_SKIPS: Final = 4
"""A dynamic loss scale comes down by a few skipped steps at the start; so many in a row are worth a look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One process's training run."""

    __pydantic_config__: ClassVar = CHECKS

    variant: str
    """As the user wrote it: ``auto``, ``bf16``, ``fp16+compile``."""
    precision: str
    """The format computed in: ``fp32``, ``tf32``, ``bf16`` or ``fp16``."""
    reason: str
    """Why that precision, in words."""
    repeat: int
    """Counts from 0; every variant's run with the same number has the same seeds."""
    end: RunEnd
    role: Role = Role.COMPARED
    fp32_modules: tuple[str, ...] = ()
    """In a rescued run: the suspected modules that were kept in fp32."""
    steps: tuple[StepRecord, ...] = ()
    peak_tensor_bytes: int | None = None
    """Largest sum of live storages during one sampled step."""
    peak_allocated_bytes: int | None = None
    """``torch.cuda.max_memory_allocated``, on CUDA."""
    watching_ms: float | None = None
    """What watching the steps added to each, on average: it is in every variant's step time."""
    left_alone: str | None = None
    """The script's own mixed precision that ampwise left to it, with its place; None where ampwise applied its own."""
    failure: Failure | None = None
    notes: tuple[str, ...] = ()
    """What else the reader should know: files redirected, optimizers kept in fp32, ..."""
    numerics: NumericsRecord | None = None
    nonfinite: NonFiniteRecord | None = None
    against_fp32: AgainstFp32Record | None = None
    sensitivity: SensitivityRecord | None = None
    syncs: SyncRecord | None = None
    memory: MemoryRecord | None = None
    kernels: KernelRecord | None = None
    casts: CastRecord | None = None
    process: ProcessRecord | None = None
    layout: LayoutRecord | None = None
    compilation: CompileRecord | None = None
    """None where nothing was compiled."""
    usage: UsageRecord | None = None
    outputs: OutputRecord | None = None
    """What the model gave, where the run only evaluates: its steps are then forward passes."""
    crash: CrashRecord | None = None
    """What an uncaught exception of the script's came from."""
    ranks: tuple[RankRecord, ...] = ()
    """The processes this record was put together from; none where one process trained alone."""
    switches: tuple[SwitchRecord, ...] = ()
    """Groups of modules that a PrecisionScheduler of the script's moved to another format, the first first."""

    @property
    def has_finished(self) -> bool:
        """Whether the run came to its own end or to the one set."""
        return self.end in {RunEnd.FINISHED, RunEnd.STOPPED}

    @property
    def num_skipped(self) -> int:
        """How many steps were left out because their gradients were not finite."""
        return sum(step.skipped for step in self.steps)

    @property
    def first_bad_loss(self) -> int | None:
        """The first step whose loss is not finite."""
        return next((one.index for one in self.steps if one.loss is not None and not math.isfinite(one.loss)), None)

    @property
    def longest_skips(self) -> int:
        """The most steps in a row that were left out."""
        runs = ((skipped, len(list(group))) for skipped, group in groupby(one.skipped for one in self.steps))
        return max((length for skipped, length in runs if skipped), default=0)

    @property
    def plans_itself(self) -> bool:
        """Whether a plan that the script itself puts into effect decides what its modules compute in."""
        return (self.left_alone or "").startswith(_OWN_PLANS)

    @property
    def has_lost_numbers(self) -> bool:
        """Whether a loss was not finite, or more steps in a row were left out than a scale that settles takes."""
        return self.first_bad_loss is not None or self.longest_skips >= NUM_SKIPS

    @property
    def keeps_numbers(self) -> bool:
        """Whether every loss and weight was finite, and every gradient but a skipped step's; False if nobody looked."""
        seen = self.nonfinite
        if seen is None or self.has_lost_numbers or seen.loss_steps or seen.weight_steps:
            return False
        return {step.index for step in self.steps if step.skipped}.issuperset(seen.gradient_steps)

    def shows_loss_of(self, first: "RunRecord") -> bool:
        """Whether this rerun lost its numbers as ``first`` did.

        Where the first lost its loss, skips beside a finite one are the scale coming down.
        """
        return self.first_bad_loss is not None or (first.first_bad_loss is None and self.longest_skips >= NUM_SKIPS)

    @property
    def final_scale(self) -> float | None:
        """The loss scale at the end; None without loss scaling."""
        return next((step.scale for step in reversed(self.steps) if step.scale is not None), None)


def num_warm_up(num_steps: int) -> int:
    """How many first steps of a run are not timed: a tenth, at least two."""
    return max(2, math.ceil(num_steps / 10))


def timed_steps(run: RunRecord) -> list[StepRecord]:
    """The first optimizer's steps whose time counts; all that have one where the run was too short to leave any out."""
    steps = [step for step in run.steps if step.optimizer == 0]
    warm = [step for step in steps[num_warm_up(len(steps)) :] if step.time_ms is not None]
    return warm or [step for step in steps if step.time_ms is not None]

"""What the rules on speed share: which low format was computed in, what a step cost, and what it cost in fp32."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ampwise.doctor.case import Case
from ampwise.records.kernels import MatrixProduct
from ampwise.records.process import ProcessRecord
from ampwise.records.run import Role, RunRecord, timed_steps

LOW_FORMATS: Final = ("fp8_e4m3", "fp8_e5m2", "fp16", "bf16")
_LEAST_CPU_MS: Final = 5.0
"""A shorter step on a CPU is not compared: hooks and events cost it more than the formats differ by."""
_LEAST_SHARE: Final = 0.1
"""Products in a low format that are less of the work than this are the script's own affair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What a step cost as it was watched, and in fp32.

    On a CPU it is the process's CPU time, for others may have had the machine's in the meantime.
    """

    watched_ms: float
    fp32_ms: float
    is_cpu_time: bool
    watching_ms: float = 0.0
    """Of the watched step, what an instrument may have taken that looks at every step; of tiny models most of it."""

    @property
    def gain(self) -> float:
        """How many times as fast as fp32; below 1 where it is slower."""
        return self.fp32_ms / self.watched_ms

    @property
    def best_gain(self) -> float:
        """The same if all of ``watching_ms`` was the instrument's: what a finding that it is slow must stand on."""
        rest_ms = self.watched_ms - self.watching_ms
        return self.fp32_ms / rest_ms if rest_ms > 0 else math.inf

    @property
    def words(self) -> str:
        """Both figures, for a sentence: ``19.8 ms of CPU time a step, 53.5 ms in fp32``."""
        kind = " of CPU time" if self.is_cpu_time else ""
        return f"{self.watched_ms:.3g} ms{kind} a step, {self.fp32_ms:.3g} ms in fp32"


def is_emulated(run: RunRecord) -> bool:
    """Whether the low format was emulated, so that times say nothing of it."""
    return run.variant.startswith("emulated ")


def low_format(case: Case) -> str | None:
    """The low format in which most of the matrix products were computed; None where hardly any was, or unknown."""
    kernels = case.run.kernels
    if kernels is None:
        return None
    total = num_flops(kernels.products)
    work = {name: num_flops(in_format(kernels.products, name)) for name in LOW_FORMATS}
    largest = max(work, key=lambda name: work[name])
    return largest if work[largest] > _LEAST_SHARE * total else None


def in_format(products: Iterable[MatrixProduct], name: str) -> list[MatrixProduct]:
    """The products whose operands were all in one format."""
    return [product for product in products if product.dtype == name]


def num_flops(products: Iterable[MatrixProduct]) -> float:
    """Floating-point operations of all of them."""
    return sum(product.num_flops for product in products)


def shape_words(product: MatrixProduct) -> str:
    """A product for a sentence: ``aten.addmm 512x1000x30``, rows, columns and what is summed over."""
    return f"{product.op} {product.m}x{product.n}x{product.k}"


def step_cost(case: Case) -> StepCost | None:
    """What a step cost, beside the same run in fp32; None where either is not known, or a format was emulated."""
    fp32 = case.rerun(Role.IN_FP32)
    if fp32 is None or is_emulated(case.run):
        return None
    read = cpu_ms if case.is_on_cpu else step_ms
    watched_ms, fp32_ms = read(case.run), read(fp32)
    if not watched_ms or not fp32_ms or (case.is_on_cpu and watched_ms < _LEAST_CPU_MS):
        return None
    guard = case.run.nonfinite
    return StepCost(
        watched_ms=watched_ms,
        fp32_ms=fp32_ms,
        is_cpu_time=case.is_on_cpu,
        watching_ms=0.0 if guard is None else guard.guard_ms,
    )


def step_ms(run: RunRecord) -> float | None:
    """The median time of a step; None where none was timed."""
    times = [step.time_ms for step in timed_steps(run) if step.time_ms is not None]
    return statistics.median(times) if times else None


def cpu_ms(run: RunRecord) -> float | None:
    """CPU time a step, over the steps that no instrument slowed; None where it was not counted."""
    process = run.process
    if process is None or not process.num_steps:
        return None
    return (process.user_ms + process.system_ms) / process.num_steps


def data_share(process: ProcessRecord | None) -> float:
    """Which share of a step was spent waiting for the DataLoader; 0 where that is not known."""
    return 0.0 if process is None else process.data_share


def cast_share(run: RunRecord) -> float | None:
    """Which share of the computing time went into casts: by the profiler on a GPU, by the operators on a CPU."""
    kernels = run.kernels
    if kernels is not None and kernels.device_busy_ms is not None:
        return kernels.cast_share
    return None if run.casts is None else run.casts.time_share

"""Lays out which variant runs when."""

from dataclasses import dataclass
from pathlib import Path

from ampwise.compare.variants import FP32, Variant
from ampwise.runner.planned import with_plan
from ampwise.runner.spec import LaunchSpec, Lists, Malloc

_MEMORY_STEP = 5
_NUM_FP32_SEEDS = 2
"""Runs of fp32 that it takes to see its noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """What is compared, and how long each run is."""

    variants: tuple[Variant, ...]
    num_steps: int = 60
    num_repeats: int = 2
    project_steps: int | None = None
    device: str | None = None
    malloc: Malloc = Malloc.AUTO
    lists: Lists = Lists.CUDA
    evaluates: bool = False
    """The script only evaluates: a step is a forward pass."""
    scratch: str | None = None
    """Folder for what the runs save and print."""

    @property
    def saved(self) -> str | None:
        """Folder to which what the runs save is redirected."""
        return None if self.scratch is None else str(Path(self.scratch, "saved"))

    @property
    def memory_step(self) -> int:
        """The step whose storages are counted: state exists, an fp16 scale has settled, a short script is not over."""
        return min(self.num_steps // 2, _MEMORY_STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """One run of one variant."""

    variant: Variant
    repeat: int
    is_extra: bool = False
    """Made only to see fp32's noise; in no row of the table."""

    def spec(self, plan: ComparisonPlan) -> LaunchSpec:
        """What the run's process is told."""
        spec = LaunchSpec(
            precision=self.variant.precision,
            compile=self.variant.compile,
            emulate=self.variant.emulate,
            repeat=self.repeat,
            stop_after=plan.num_steps,
            memory_step=plan.memory_step,
            device=plan.device,
            malloc=plan.malloc,
            lists=plan.lists,
            scratch=plan.saved,
            evaluates=plan.evaluates,
            summary=False,
        )
        return spec if self.variant.plan is None else with_plan(spec, self.variant.plan)


def schedule(plan: ComparisonPlan) -> tuple[ScheduledRun, ...]:
    """The runs in order: A B, then B A, and so on, so that a machine that warms up favours none.

    Where fp32 is not asked for, or only once, it runs as well until there are two seeds of it, of an evaluation one.
    """
    runs: list[ScheduledRun] = []
    has_fp32 = any(variant.is_fp32 for variant in plan.variants)
    num_seeds = 1 if plan.evaluates else _NUM_FP32_SEEDS  # outputs are held against the same seed's
    for repeat in range(max(plan.num_repeats, num_seeds)):
        variants = plan.variants if repeat < plan.num_repeats else ()
        turn = [ScheduledRun(variant=variant, repeat=repeat) for variant in variants]
        if repeat < num_seeds and not (has_fp32 and variants):
            turn.insert(0, ScheduledRun(variant=FP32, repeat=repeat, is_extra=True))
        runs.extend(reversed(turn) if repeat % 2 else turn)
    return tuple(runs)

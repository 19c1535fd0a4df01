"""Runs a script under one plan after another, as the search asks; what was run once is remembered, on disk too."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from ampwise._base.errors import CannotRunError
from ampwise.plan.plan import Plan
from ampwise.plan.writing import to_toml
from ampwise.records.files import save
from ampwise.records.run import OWN_REFUSAL, RunRecord, timed_steps
from ampwise.records.tuning import NoiseRecord, TrialRecord, TuningState
from ampwise.runner.child import Runner
from ampwise.runner.script import Target
from ampwise.runner.spec import Amp, LaunchSpec
from ampwise.tune.parity import trial_of
from ampwise.tune.search import Kept, OutOfTime

_MEMORY_STEP: Final = 5
"""The step whose tensors are counted, in the runs that are reported."""


_WATCHED: Final = ("numerics",)
"""With what runs are watched that are compared: gradients that vanish show in no loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a search is."""

    what: str
    """What runs now."""
    num_done: int
    """Its steps."""
    num_steps: int


Tell = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Tell nobody."""


class Journal:
    """What was done, kept in a file that is whole at any moment; without a file, in memory alone."""

    def __init__(self, state: TuningState, path: Path | None) -> None:
        self.state = state
        self._path = path

    def add_fp32(self, run: RunRecord) -> None:
        """Remember a run in fp32."""
        self._set(replace(self.state, fp32=(*self.state.fp32, run)))

    def add_trial(self, trial: TrialRecord) -> None:
        """Remember a trial."""
        self._set(replace(self.state, trials=(*self.state.trials, trial)))

    def trial(self, kept: frozenset[str], seed: int) -> TrialRecord | None:
        """The trial of these modules with that seed; None where it was not made."""
        return next((one for one in self.state.trials if frozenset(one.kept) == kept and one.seed == seed), None)

    def forget(self) -> None:
        """Remove the file: there is nothing to go on with."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _set(self, state: TuningState) -> None:
        self.state = state
        if self._path is not None:
            save(state, self._path)


class Runs:
    """Makes runs of one script, while there is time.

    Args:
        target: The script.
        spec: How many steps, on which device, and where what it saves goes.
        run: Makes one run.
        tell: Is told of every step.
        deadline: When no further run may begin, by ``clock``; None for never.
        clock: Gives seconds.
    """

    def __init__(
        self,
        target: Target,
        spec: LaunchSpec,
        *,
        run: Runner,
        tell: Tell,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._spec = spec
        self._run = run
        self._tell = tell
        self._deadline = deadline
        self._clock = clock
        self._longest_s = 0.0

    def fp32(
        self,
        *,
        seed: int,
        what: str,
        rehearse: Plan | None = None,
        emulate: str | None = None,
        memory: bool = False,
    ) -> RunRecord:
        """A run in fp32, whatever mixed precision the script does by itself.

        Args:
            seed: Added to the script's own.
            what: Why, for a progress bar.
            rehearse: Tried on one module at a time.
            emulate: The format that is emulated for it.
            memory: Count its tensors, with no instrument on whose own would be among them.
        """
        spec = replace(
            self._spec,
            precision="fp32",
            amp=Amp.OFF,
            repeat=seed,
            instruments=("nonfinite",) if rehearse is not None else () if memory else _WATCHED,
            rehearse=None if rehearse is None else to_toml(rehearse),
            rehearse_emulated=emulate,
            memory_step=_MEMORY_STEP if memory else None,
        )
        return self._made(spec, what)

    def planned(self, plan: Plan, *, seed: int, what: str, emulate: str | None, memory: bool = False) -> RunRecord:
        """A run under a plan, whose default is in effect around its rules."""
        spec = replace(
            self._spec,
            precision=emulate or plan.default,
            emulate=emulate,
            plan=to_toml(plan),
            rules_stay=True,
            lists=plan.lists,
            repeat=seed,
            instruments=() if memory else _WATCHED,
            memory_step=_MEMORY_STEP if memory else None,
        )
        return self._made(spec, what)

    def _made(self, spec: LaunchSpec, what: str) -> RunRecord:
        start = self._clock()
        if self._deadline is not None and start + self._longest_s >= self._deadline:
            raise OutOfTime
        num_steps = spec.stop_after or 0

        def on_step(num_done: int) -> None:
            self._tell(Progress(what=what, num_done=num_done, num_steps=num_steps))

        on_step(0)
        output = str(Path(spec.scratch).with_name("output")) if spec.scratch is not None else None
        record = self._run(self._target, spec, on_step=on_step, output=output)
        self._longest_s = max(self._longest_s, self._clock() - start)
        if record.failure is not None and record.failure.kind == OWN_REFUSAL:
            raise CannotRunError(record.failure.message)
        return record


class Trials:
    """Answers the search: the error of keeping some modules, in units of the tolerance.

    Args:
        runs: Makes the runs.
        journal: Remembers the trials.
        plan_for: The plan that keeps these modules.
        fp32: fp32's runs, by their seeds.
        noise: What is tolerated.
        emulate: The format that is emulated.
        order: Puts names of what is kept in the order in which modules are called.
    """

    def __init__(
        self,
        runs: Runs,
        journal: Journal,
        *,
        plan_for: Callable[[Kept], Plan],
        fp32: dict[int, RunRecord],
        noise: NoiseRecord,
        emulate: str | None,
        order: Callable[[Iterable[str]], tuple[str, ...]],
    ) -> None:
        self._runs = runs
        self._journal = journal
        self._plan_for = plan_for
        self._fp32 = fp32
        self._noise = noise
        self._emulate = emulate
        self._order = order

    def error(self, kept: Kept) -> float:
        """The error with the first seed; that of another one where it was tried and failed there."""
        first = self.trial(kept, min(self._fp32)).error
        other = self._journal.trial(kept, max(self._fp32))
        return first if other is None or other.passes else max(first, other.error)

    def trial(self, kept: Kept, seed: int) -> TrialRecord:
        """The trial of these modules with that seed; made now where it was not yet."""
        known = self._journal.trial(kept, seed)
        if known is not None:
            return known
        is_other = seed != min(self._fp32)
        which = "confirming" if is_other else f"trial {len(self._journal.state.trials) + 1}"
        what = f"{which}: {len(kept)} kept in fp32"
        run = self._runs.planned(self._plan_for(kept), seed=seed, what=what, emulate=self._emulate, memory=is_other)
        fp32 = self._fp32[seed]
        made = replace(
            trial_of(run, fp32=fp32, noise=self._noise, kept=self._order(kept), seed=seed),
            peak_tensor_bytes=run.peak_tensor_bytes if is_other else None,
            ratio_time=_ratio(fp32, run) if self._emulate is None else None,
        )
        self._journal.add_trial(made)
        return made


def _ratio(fp32: RunRecord, planned: RunRecord) -> float | None:
    """How many times as fast a step is under the plan."""
    times = [[step.time_ms for step in timed_steps(run) if step.time_ms] for run in (fp32, planned)]
    return median(times[0]) / median(times[1]) if all(times) else None

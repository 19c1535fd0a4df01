"""Finds which modules of a script have to stay in fp32, by running it: the whole of ``ampwise tune``."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from ampwise._base.errors import AmpwiseError, CannotRunError, UsageError
from ampwise._base.text import inert_line
from ampwise.plan.plan import Plan
from ampwise.plan.writing import pinned, to_toml
from ampwise.records.environment import Environment
from ampwise.records.files import load
from ampwise.records.run import RunEnd, RunRecord
from ampwise.records.sensitivity import SensitivityRecord
from ampwise.records.tuning import KeptPlace, NoiseRecord, Outcome, TrialRecord, TuningRecord, TuningState
from ampwise.runner.bootstrap import own_environment
from ampwise.runner.changes import ChangeWatch
from ampwise.runner.child import Runner, run_child
from ampwise.runner.environment import describe_environment
from ampwise.runner.script import Target
from ampwise.runner.spec import LaunchSpec
from ampwise.runner.summary import NO_STEP_FOUND
from ampwise.tune.half import check_parameters
from ampwise.tune.outcome import (
    INTERRUPTED,
    TIME_WAS_OVER,
    answer,
    check_losses,
    is_refusal,
    notes_on,
    origin_in,
    what_failed,
)
from ampwise.tune.parity import noise_of
from ampwise.tune.question import Question
from ampwise.tune.reasons import reasons_for
from ampwise.tune.rules import Reasons, check_fit, plan_of, with_fp8
from ampwise.tune.search import Found, OutOfTime, Unit, refine, search
from ampwise.tune.trials import Journal, Runs, Tell, Trials, ignore
from ampwise.tune.units import Places, most_harmful, units_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What fp32 is on this script: by what all trials are judged."""

    ranked: RunRecord
    sensitivity: SensitivityRecord
    noise: NoiseRecord
    by_seed: dict[int, RunRecord]


@dataclass(slots=True, kw_only=True)
class Tuner:
    """One search, from its question to its record.

    Args:
        target: The script.
        question: What is looked for.
        state: Where the search keeps what it did, to be resumed from; None keeps nothing.
        resume: Go on with what is there.
        saved: Where what the script saves goes; None leaves its files to it. What it prints goes beside it.
        on_progress: Told of every step.
        run: Makes one run.
        describe: Says where the runs took place.
        clock: Gives seconds, by which the budget is kept.
        ended: What ended the search, in words, where it is not at its end.
    """

    target: Target
    question: Question
    state: Path | None = None
    resume: bool = False
    saved: str | None = None
    on_progress: Tell | None = None
    run: Runner = run_child
    describe: Callable[[Question], Environment] | None = None
    clock: Callable[[], float] = time.monotonic
    ended: str = TIME_WAS_OVER
    _emulate: str | None = field(default=None, init=False)
    _began: float = field(default=0.0, init=False)

    def tune(self) -> TuningRecord:
        """The plan, or why there is none.

        Raises:
            UsageError: there is nothing to resume, or it answers another question.
            CannotRunError: the script's loss cannot be judged: there is none, or its noise is too large.
        """
        self._began = self.clock()
        self._emulate = self.question.emulated()
        changes = ChangeWatch(str(Path.cwd()), scratch=self.saved, own=self.state) if self.saved is not None else None
        journal = Journal(self._state(), self.state)
        num_before = len(journal.state.trials)
        runs = self._runs()
        try:
            record = self._answer(runs, journal)
        except AmpwiseError:
            if not journal.state.trials:  # it would be refused again
                journal.forget()
            raise
        if record.outcome not in {Outcome.OUT_OF_TIME, Outcome.NOTHING_YET}:
            journal.forget()
        notes = (*record.notes, *(changes.notes() if changes is not None else ()))
        return replace(record, resumed=num_before, notes=notes, seconds=self.clock() - self._began)

    def best_so_far(self) -> TuningRecord | None:
        """What is known after ``tune`` was interrupted, from what it kept; makes no run. None where it kept nothing."""
        if self.state is None or not self.state.exists():
            return None
        try:
            question = replace(self.question, budget_min=0.0)
            return replace(self, resume=True, question=question, ended=INTERRUPTED).tune()
        except UsageError:  # what is there is of another search, which this one had not come to replace
            return None

    def _answer(self, runs: Runs, journal: Journal) -> TuningRecord:
        try:
            ground = self._ground(runs, journal)
        except OutOfTime:
            return self._record(Outcome.NOTHING_YET, f"{self.ended} before fp32's own noise was known")
        return ground if isinstance(ground, TuningRecord) else self._searched(runs, journal, ground)

    def _runs(self) -> Runs:
        question = self.question
        spec = LaunchSpec(
            stop_after=question.num_steps, device=question.device, malloc=question.malloc, scratch=self.saved
        )
        deadline = None if question.budget_min is None else self._began + question.budget_min * 60
        return Runs(
            self.target, spec, run=self.run, tell=self.on_progress or ignore, deadline=deadline, clock=self.clock
        )

    def _state(self) -> TuningState:
        question = self.question.in_words(self.target)
        if not self.resume:
            return TuningState(question=question)
        if self.state is None or not self.state.exists():
            raise UsageError(
                f"there is nothing to resume: {inert_line(str(self.state))} does not exist; leave --resume out"
            )
        state = load(self.state, TuningState)
        other = next((name for name in question if state.question.get(name) != question[name]), None)
        if other is not None:
            raise UsageError(
                f"{inert_line(str(self.state))} was begun with another {other} "
                f"({inert_line(state.question.get(other, 'none'), max_length=60)}, now "
                f"{inert_line(question[other], max_length=60)}): ask the same, or leave --resume out to begin anew"
            )
        return state

    def _ground(self, runs: Runs, journal: Journal) -> _Ground | TuningRecord:
        """fp32's three runs and what follows from them; a record where that is all there is to say."""
        seed, start = self.question.seed, self.question.start()
        made = list(journal.state.fp32)
        orders = (
            lambda: runs.fp32(seed=seed, what="fp32, and each module by itself", rehearse=start, emulate=self._emulate),
            lambda: runs.fp32(seed=seed, what="fp32 again: is it the same?"),
            lambda: runs.fp32(seed=seed + 1, what="fp32 with another seed", memory=True),
        )
        for place, order in enumerate(orders):
            if place == len(made):
                made.append(order())
                journal.add_fp32(made[-1])
            check_parameters(made[place], self.target)
            if not made[place].has_finished or made[place].has_lost_numbers:
                return self._failed(made[place], made[0])
            check_losses(made[place])
        first, again, other = made
        noise = noise_of(first, again, other, tolerance=self.question.tolerance)
        if first.sensitivity is None or not first.sensitivity.modules:
            raise CannotRunError("the script calls no torch.nn.Module, so no rule on modules could help it")
        return _Ground(
            ranked=first,
            sensitivity=first.sensitivity,
            noise=noise,
            by_seed={seed: replace(first, numerics=again.numerics), seed + 1: other},
        )

    def _failed(self, run: RunRecord, first: RunRecord) -> TuningRecord:
        if run.end is RunEnd.NO_STEPS:
            raise CannotRunError(NO_STEP_FOUND)
        if is_refusal(run):
            told = f"{what_failed(run)}: its own arguments stand behind its name"
            return self._record(Outcome.FAULT_IN_FP32, told)
        what = f"{what_failed(run)} in fp32 too, so precision cannot fix this"
        told = origin_in(first)
        advice = f"; `ampwise doctor {inert_line(' '.join(self.target.command))}` looks for the cause"
        return self._record(Outcome.FAULT_IN_FP32, f"{what}{told}{advice}")

    def _searched(self, runs: Runs, journal: Journal, ground: _Ground) -> TuningRecord:
        idle = check_fit(self.question.start(), ground.sensitivity.modules)
        units, places = self._units(ground), Places.of(ground.sensitivity)
        trials = Trials(
            runs,
            journal,
            plan_for=lambda kept: self._plan(kept, places, ground),
            fp32=ground.by_seed,
            noise=ground.noise,
            emulate=self._emulate,
            order=places.order,
        )
        start = sum(math.isinf(unit.score) and not unit.is_certain for unit in units)
        is_confirmed = False
        while True:
            found = refine(search(units, trials.error, start=start), places.parts, trials.error)
            if found.best is None or not found.is_complete:
                break
            try:
                is_confirmed = trials.trial(frozenset(found.best.kept), max(ground.by_seed)).passes
            except OutOfTime:
                break
            if is_confirmed:
                break
        record = self._told(found, places, journal.state.trials, ground, is_confirmed=is_confirmed)
        return replace(record, notes=(*idle, *record.notes))

    def _units(self, ground: _Ground) -> tuple[Unit, ...]:
        """What may be kept; outside of the modules a rule reaches only what it brings to fp32."""
        units, places = units_of(ground.sensitivity), Places.of(ground.sensitivity).by_name
        if self.question.high == "fp32":
            return units
        return tuple(unit for unit in units if places[unit.name].module is not None)

    def _plan(self, kept: Iterable[str], places: Places, ground: _Ground, why: Reasons = lambda _: None) -> Plan:
        question = self.question
        stays = [places.by_name[name] for name in kept]
        return plan_of(question.start(), stays, ground.sensitivity.modules, high=question.high, why=why)

    def _told(
        self, found: Found, places: Places, done: tuple[TrialRecord, ...], ground: _Ground, *, is_confirmed: bool
    ) -> TuningRecord:
        outcome, explanation = answer(
            found, places, ground.sensitivity, done, is_confirmed=is_confirmed, ended=self.ended
        )
        record = replace(
            self._record(outcome, explanation),
            num_steps=len(ground.ranked.steps),
            ranked_steps=ground.sensitivity.steps,
            noise=ground.noise,
            num_modules=len({one.module for one in ground.sensitivity.modules}),
            trials=done,
            modules=most_harmful(ground.sensitivity),
            outside=ground.sensitivity.outside,
            notes=tuple(notes_on(done, ground.sensitivity, ground.noise)),
        )
        if found.best is None:
            return record
        kept = frozenset(found.best.kept)
        reasons = reasons_for(kept, ground.sensitivity, places, done)
        certain = {unit.name for unit in units_of(ground.sensitivity) if unit.is_certain}
        record = replace(
            record,
            kept=tuple(
                KeptPlace(
                    name=name,
                    module=(place := places.by_name[name]).module,
                    operators=place.operators,
                    because=reasons[name],
                    is_certain=(name if place.module is None else place.module) in certain,
                )
                for name in found.best.kept
            ),
        )
        if not outcome.has_plan:
            return record
        plan = self._plan(found.best.kept, places, ground, reasons.get)
        fp32 = ground.by_seed[max(ground.by_seed)]
        confirming = next((one for one in done if frozenset(one.kept) == kept and one.seed == fp32.repeat), None)
        return replace(
            record,
            plan=to_toml(pinned(with_fp8(plan, self.question.low))),
            peak_tensor_bytes=confirming.peak_tensor_bytes if confirming is not None else None,
            peak_tensor_bytes_fp32=fp32.peak_tensor_bytes,
            ratio_time=confirming.ratio_time if confirming is not None else None,
        )

    def _record(self, outcome: Outcome, explanation: str) -> TuningRecord:
        return TuningRecord(
            created=datetime.now().astimezone().isoformat(timespec="seconds"),
            command=self.target.command,
            environment=(self.describe or _describe)(self.question),
            target=self.question.low,
            emulated=self._emulate is not None,
            outcome=outcome,
            explanation=explanation,
            num_steps=self.question.num_steps,
            ranked_steps=(),
        )


def _describe(question: Question) -> Environment:
    return describe_environment(device=question.device, malloc=question.malloc, environ=own_environment())

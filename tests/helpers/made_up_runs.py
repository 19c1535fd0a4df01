"""Trainings that are made up: what a run in a process of its own would have recorded under each plan."""

from dataclasses import dataclass, field

from ampwise.plan.file import parse_plan
from ampwise.records.environment import Environment
from ampwise.records.run import Failure, RunEnd, RunRecord, StepRecord
from ampwise.records.sensitivity import ModuleSensitivity, OutsideSensitivity, RangeFault, SensitivityRecord
from ampwise.runner.script import Target
from ampwise.tune.question import Question
from ampwise.tune.tune import Tuner


def module(path, *, score=0.0, relative=1e-3, calls_modules=False, **fields):
    return ModuleSensitivity(
        module=path,
        module_kind="Linear",
        num_calls=2,
        score=score,
        relative=relative,
        amax=1.0,
        calls_modules=calls_modules,
        **fields,
    )


def overflow(step=2, **fields):
    return RangeFault(op="aten.mm", format="fp16", amax=8.1e4, step=step, **fields)


@dataclass
class Script:
    """Losses fall from 2 to 1; what each module in the low format adds to them is made up."""

    harm: dict[str, float] = field(default_factory=dict)
    """Added to every loss while a module is in the low format, by its path."""
    op_harm: dict[tuple[str | None, str], float] = field(default_factory=dict)
    """The same for an operator of a module; outside of all modules that is None."""
    beyond: list[OutsideSensitivity] = field(default_factory=list)
    modules: list[ModuleSensitivity] = field(default_factory=list)
    seed_noise: float = 0.004
    rerun_noise: float = 0.0
    outside: float = 0.0
    """Added in the low format whatever is kept."""
    fails_in_fp32: Failure | None = None
    nan_in_fp32: bool = False
    no_loss: bool = False
    num_losses: int | None = None
    left_alone: str | None = None
    unlucky: dict[int, float] = field(default_factory=dict)
    """Added in the low format under that seed alone."""
    num_skipped: int = 0
    """Of the first steps of each run under a plan."""
    seconds: float = 10.0
    now: float = 0.0
    runs: list = field(default_factory=list)

    def __call__(self, _, spec, *, on_step, output):
        self.now += self.seconds
        self.runs.append(spec)
        assert output is None  # nothing is saved
        on_step(1)
        is_fp32 = spec.plan is None
        added = self._rerun() if is_fp32 else self._added(spec)
        if is_fp32 and self.fails_in_fp32 is not None:
            return self._record(spec, (), end=RunEnd.FAILED, failure=self.fails_in_fp32)
        number = self.num_losses or spec.stop_after
        seeds = self.seed_noise * spec.repeat
        losses = [2.0 - step / number + added + seeds for step in range(number)]
        if is_fp32 and self.nan_in_fp32:
            losses[3:] = [float("nan")] * (number - 3)
        steps = tuple(
            StepRecord(
                index=i,
                optimizer=0,
                loss=None if self.no_loss else loss,
                time_ms=1.0,
                skipped=not is_fp32 and i < self.num_skipped,
            )
            for i, loss in enumerate(losses)
        )
        return self._record(spec, steps)

    def _rerun(self):
        return self.rerun_noise * (len([one for one in self.runs if one.plan is None]) - 1)

    def _added(self, spec):
        plan = parse_plan(spec.plan)
        low = [path for path in self.harm if plan.resolve(path).compute != "fp32"]
        ops = [(path, op) for path, op in self.op_harm if not _is_lifted(plan, path, op)]
        return (
            sum(self.harm[path] for path in low)
            + sum(map(self.op_harm.get, ops))
            + self.outside
            + self.unlucky.get(spec.repeat, 0.0) * bool(low)
        )

    def _record(self, spec, steps, *, end=RunEnd.STOPPED, failure=None):
        seen = None
        if spec.rehearse is not None:
            low = spec.rehearse_emulated or "fp16"
            seen = SensitivityRecord(format=low, steps=(0, 3), modules=tuple(self.modules), outside=tuple(self.beyond))
        return RunRecord(
            variant=spec.variant,
            precision=spec.precision,
            reason="asked for",
            repeat=spec.repeat,
            end=end,
            steps=steps,
            failure=failure,
            left_alone=self.left_alone,
            sensitivity=seen,
            peak_tensor_bytes=1000 if spec.precision == "fp32" else 700,
        )


def _is_lifted(plan, path, op):
    if path is not None:
        return plan.resolve(path, op).compute == "fp32"
    return any(rule.module is None and rule.op == op and rule.compute == "fp32" for rule in plan.rules)


HERE = Environment(
    ampwise="0", python="3", torch="2.13", platform="", device="cpu", device_name="", num_threads=1, allocator="system"
)


def tuner(script, *, state=None, resume=False, **question):
    return Tuner(
        target=Target(path="train.py"),
        question=Question(**{"num_steps": 16, "device": "cpu", **question}),
        state=state,
        resume=resume,
        run=script,
        describe=lambda _: HERE,
        clock=lambda: script.now,
    )

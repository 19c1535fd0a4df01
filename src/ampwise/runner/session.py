"""Everything ampwise does in one process while somebody's script runs, from the import of torch to the end."""

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampwise._base.errors import AmpwiseError, CannotRunError
from ampwise.observe.events import BUS
from ampwise.records.ranks import merged
from ampwise.records.run import OWN_REFUSAL, Failure, RunEnd, RunRecord
from ampwise.runner.choice import choose_once, own_gpu
from ampwise.runner.failures import describe, end_of
from ampwise.runner.imports import after_import
from ampwise.runner.malloc import set_allocator
from ampwise.runner.script import RefusedRun, ScriptEnd
from ampwise.runner.seeds import seed_python, seed_run
from ampwise.runner.spec import Amp, LaunchSpec
from ampwise.runner.summary import ProcessReport, RunSummary, leave_report, read_reports, together
from ampwise.runner.watch import StepWatch

if TYPE_CHECKING:
    from ampwise.instruments.memory import PeakMemory
    from ampwise.instruments.outputs import OutputWatch
    from ampwise.instruments.steps import StepWatcher
    from ampwise.instruments.switches import SwitchWatch
    from ampwise.observe.modules import ModuleStack
    from ampwise.plan.plan import Plan
    from ampwise.records.crash import CrashRecord
    from ampwise.runner.inject import Injected
    from ampwise.runner.instruments import Instrument
    from ampwise.runtime.hardware.device import Choice
    from ampwise.runtime.scaling.loss_scale import LossScale

_NO_TORCH = "the script did not import torch"
_OWN = "as the script has it"
_EMULATED = "its losses are those of {0} hardware, its times and memory this CPU's"


class Session:
    """One process's part in a run.

    Nothing of torch is touched before the script imports it: what the script sets in the environment first still
    counts, and a script without torch pays nothing.
    """

    def __init__(
        self, spec: LaunchSpec, *, command: tuple[str, ...], environ: Mapping[str, str], is_child: bool = False
    ) -> None:
        self.spec = spec
        self._is_child = is_child
        self.command = command
        self.watch = StepWatch(BUS, stop_after=spec.stop_after, progress=spec.progress)
        self._environ = environ
        self._stack = ExitStack()
        self._choice: Choice | None = None
        self._allocator = "system"
        self._injected: Injected | None = None
        self._steps: StepWatcher | None = None
        self._switches: SwitchWatch | None = None
        self._memory: PeakMemory | None = None
        self._outputs: OutputWatch | None = None
        self._instruments: dict[str, Instrument] = {}
        self._modules: ModuleStack | None = None
        self._notes: list[str] = []

    @property
    def choice(self) -> "Choice | None":
        """The precision and why; None where the script has not imported torch."""
        return self._choice

    @property
    def is_idle(self) -> bool:
        """Whether the script ran in this process and never imported torch."""
        return bool(self.command) and self._choice is None

    @property
    def num_steps(self) -> int:
        """Training steps that this process made."""
        return self.watch.num_steps

    def open(self) -> None:
        """Wait for the script to import torch, then take effect; what does not need torch takes effect now."""
        if self.spec.record is not None:
            seed_python(self.spec.repeat)
        self._stack.callback(after_import("torch", self._take_effect))

    def close(self) -> None:
        """Take everything back; what was seen stays."""
        self._stack.close()

    def reports(self) -> tuple[ProcessReport, ...]:
        """What the run's other processes left, the lowest rank first."""
        return tuple(read_reports(self.spec.parts)) if self.spec.parts is not None else ()

    def leave_report(self) -> None:
        """Leave what this process did for the one that was started first; one that did nothing leaves nothing."""
        if self.spec.parts is not None and self.num_steps:
            record = self._ended(self._own_record(), ScriptEnd(status=0)) if self.spec.record is not None else None
            report = ProcessReport(rank=self.watch.rank, summary=self.own_summary(), run=record)
            leave_report(report, parts=self.spec.parts, name=str(os.getpid()))

    def summary(self) -> RunSummary:
        """What the run did: this process and other ranks that left word, or where it did not train, those that did."""
        own = (ProcessReport(rank=self.watch.rank, summary=self.own_summary()),)
        return together((*(own if self.num_steps else ()), *self.reports()) or own)

    def report(self) -> ProcessReport:
        """What this process did, or those it started, for the one that speaks for all."""
        return ProcessReport(rank=self.watch.rank, summary=self.summary())

    def own_summary(self) -> RunSummary:
        """What this process did."""
        choice, injected = self._choice, self._injected
        return RunSummary(
            precision=choice.precision if choice else self.spec.precision,
            reason=choice.reason if choice else _NO_TORCH,
            device=choice.device if choice else "cpu",
            num_steps=self.num_steps,
            step_ms_median=self.watch.step_ms_median(),
            num_skipped=injected.num_skipped if injected else 0,
            final_scale=injected.scale if injected else None,
            allocator=self._allocator,
            left_alone=injected.left_alone if injected else None,
            emulated=choice.emulated if choice else False,
            notes=self._all_notes(),
        )

    def record(self, end: ScriptEnd) -> RunRecord:
        """The run's record: of all ranks that left theirs, and of this process unless it made no step beside them."""
        runs = {one.rank: one.run for one in reversed(self.reports()) if one.run}
        if self.num_steps or not runs:
            runs[self.watch.rank] = self._own_record()
        return self._ended(merged(list(runs.items())), end)

    def _ended(self, base: RunRecord, end: ScriptEnd) -> RunRecord:
        num_steps = max(len(base.steps), self.num_steps)
        if end.status == 0 and self.spec.stop_after is not None and num_steps >= self.spec.stop_after:
            end = replace(end, stopped=True)  # in a process that the script started
        crash = self._crash(end) if base.crash is None else base.crash
        return replace(base, end=_run_end(end, has_steps=num_steps > 0), failure=_failure(end), crash=crash)

    def _crash(self, end: ScriptEnd) -> "CrashRecord | None":
        """What the script was doing when it raised, where torch has a part in it and somebody looks."""
        is_raised = end.error is not None and not isinstance(end.error, SystemExit)
        if end.error is None or not is_raised or self._modules is None or "torch" not in sys.modules:
            return None
        from ampwise.observe.crash import read_crash

        return read_crash(end.error, names=self._modules.names)

    def _own_record(self) -> RunRecord:
        choice, injected, memory = self._choice, self._injected, self._memory
        slowed = memory.slowed_steps if memory else frozenset[int]()
        slowed = slowed.union(*(one.slowed_steps for one in self._instruments.values()))
        sections = {field: one.record() for field, one in self._instruments.items()}
        own = sections["usage"].autocast if "usage" in sections and injected and injected.left_alone else None
        return RunRecord(
            variant=self.spec.variant,
            precision=own or (choice.label if choice else self.spec.precision),
            reason=_OWN if own else choice.reason if choice else _NO_TORCH,
            repeat=self.spec.repeat,
            end=RunEnd.NO_STEPS,
            steps=self._steps.records(untimed=slowed) if self._steps else (),
            peak_tensor_bytes=memory.peak_tensor_bytes if memory else None,
            peak_allocated_bytes=memory.peak_allocated_bytes if memory else None,
            watching_ms=self._steps.cost_ms if self._steps else None,
            left_alone=injected.left_alone if injected else None,
            notes=self._all_notes(),
            switches=self._switches.record() if self._switches else (),
            outputs=self._outputs.record() if self._outputs else None,
            **sections,
        )

    def _all_notes(self) -> tuple[str, ...]:
        memory_note = self._memory.note if self._memory else None
        injected = tuple(self._injected.notes) if self._injected else ()
        return (*self._notes, *injected, *((memory_note,) if memory_note and self.num_steps else ()))

    def _take_effect(self) -> None:
        try:
            self._apply()
        except AmpwiseError as error:
            if self._is_child:
                sys.stderr.write(f"ampwise: {error}\n")
            raise RefusedRun(error) from error

    def _apply(self) -> None:
        """In this order: the device decides the precision, which decides what is injected, which instruments watch."""
        from ampwise.interpose.own_amp import switch_off_own_amp
        from ampwise.runner.inject import inject
        from ampwise.runtime.hardware.placement import use_device

        spec, stack = self.spec, self._stack
        device = stack.enter_context(use_device(spec.device))
        rank_gpu = own_gpu(self._environ) if spec.device is None else None
        self._choice = choose_once(spec, device=rank_gpu or device, environ=self._environ)
        setting = set_allocator(spec.malloc, environ=self._environ, on_cpu=self._choice.device.startswith("cpu"))
        stack.callback(setting.undo)
        self._allocator = setting.words
        if spec.scratch is not None:
            self._redirect_saves(spec.scratch)  # outside of all that looks at what the script saves
        self._injected = stack.enter_context(
            inject(
                choice=self._choice,
                lists=spec.lists,
                plan=_plan_of(spec),
                loss_scale=_loss_scale_of(spec),
                rules_stay=spec.rules_stay,
                on_plan_left=_say_plan_left if spec.summary and not self._is_child and spec.record is None else None,
            )
        )
        if spec.amp is not Amp.KEPT:  # within what looks at the script's own mixed precision, which then sees none
            stack.callback(switch_off_own_amp(autocast=spec.amp is Amp.OFF))
        if spec.record is not None:
            stack.enter_context(seed_run(spec.repeat))
            if self._choice.emulated:
                self._notes.append(_EMULATED.format(self._choice.precision))
            self._add_instruments()
        if spec.nvtx:
            self._mark_ranges()
        if spec.compile:
            from ampwise.runner.compiling import compile_outermost

            stack.callback(compile_outermost())
        if spec.evaluates:
            self._evaluate()
        self.watch.start()
        stack.callback(self.watch.close)
        self._follow_forks()

    def _redirect_saves(self, scratch: str) -> None:
        from ampwise.runner.sandbox import redirect_saves

        self._stack.enter_context(redirect_saves(scratch, folder=str(Path.cwd())))

    def _add_instruments(self) -> None:
        from ampwise.instruments.memory import PeakMemory
        from ampwise.instruments.steps import StepWatcher
        from ampwise.instruments.switches import SwitchWatch

        self._steps = self._stack.enter_context(StepWatcher(BUS, evaluates=self.spec.evaluates))
        self._switches = self._stack.enter_context(SwitchWatch(BUS))
        if self.spec.memory_step is not None:
            self._memory = self._stack.enter_context(PeakMemory(BUS, step=self.spec.memory_step))
        if self.spec.instruments or self.spec.rehearse is not None:
            from ampwise.observe.modules import ModuleStack
            from ampwise.runner.instruments import enter_instruments

            self._modules = ModuleStack()
            self._instruments = enter_instruments(BUS, self.spec, self._stack, modules=self._modules)

    def _evaluate(self) -> None:
        """Count forward passes; the last to be entered, because their steps are told by the calls' own events."""
        from ampwise.instruments.outputs import OutputWatch
        from ampwise.observe.evaluation import EvaluationLoop

        self._outputs = self._stack.enter_context(OutputWatch(BUS))
        self._stack.enter_context(EvaluationLoop(BUS, on_training=_refuse_training))

    def _mark_ranges(self) -> None:
        from ampwise.instruments.nvtx import NvtxMarks, nsys_command

        self._stack.enter_context(NvtxMarks(BUS, names=self._modules.names if self._modules else None))
        if self.command:
            self._notes.append(f"steps, modules and casts are marked for Nsight Systems; {nsys_command(self.command)}")

    def _follow_forks(self) -> None:
        """A process that multiprocessing forks inherits all of this; it counts for itself and reports at its end."""
        from multiprocessing import util

        def in_child(session: Session) -> None:
            session.watch.restart()
            util.Finalize(None, session.leave_report, exitpriority=0)

        util.register_after_fork(self, in_child)


@contextmanager
def session(
    spec: LaunchSpec, *, command: tuple[str, ...] = (), environ: Mapping[str, str] | None = None
) -> Generator[Session]:
    """Let ``spec`` take effect in this process: at once if torch is imported, else when it is.

    Args:
        spec: what to do.
        command: the script and its arguments, as the user typed them.
        environ: the process's environment, which says how the allocator is set and which GPU is this process's.

    Raises:
        RefusedRun: in the script's ``import torch``, where the machine cannot do what was asked.
    """
    current = Session(spec, command=command, environ=environ or {})
    try:
        current.open()
        yield current
    finally:
        current.close()


def _say_plan_left(what: str) -> None:
    sys.stderr.write(f"ampwise: the plan ends here: the script's own mixed precision is left to it: {what}\n")


def _refuse_training() -> None:
    raise RefusedRun(CannotRunError("the script trains: --eval is for one that only evaluates; leave --eval out"))


def _plan_of(spec: LaunchSpec) -> "Plan | None":
    if spec.plan is None:
        return None
    from ampwise.plan.file import parse_plan

    return parse_plan(spec.plan)


def _loss_scale_of(spec: LaunchSpec) -> "LossScale | None":
    if spec.amp is Amp.KEPT:
        return None
    from ampwise.runtime.scaling.loss_scale import NoLossScale

    return NoLossScale()


def _run_end(end: ScriptEnd, *, has_steps: bool) -> RunEnd:
    if end.stopped:
        return RunEnd.STOPPED
    if end.status == 0:
        return RunEnd.FINISHED if has_steps else RunEnd.NO_STEPS
    if end.error is None or isinstance(end.error, SystemExit):
        return RunEnd.FAILED
    return RunEnd.KILLED if end.interrupted else end_of(end.error)


def _failure(end: ScriptEnd) -> Failure | None:
    if end.status == 0:
        return None
    if end.error is None or isinstance(end.error, SystemExit):
        return Failure(kind=f"exit status {end.status}", message="")
    if (
        isinstance(end.error, AmpwiseError) and end.status == end.error.exit_status
    ):  # uncaught ones of a script end in 1
        return Failure(kind=OWN_REFUSAL, message=str(end.error))
    return describe(end.error)

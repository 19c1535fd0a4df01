"""``ampwise.watch()``: the instruments of ``ampwise doctor`` around a loop of one's own."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import torch
from torch import nn
from torch.optim import Optimizer

from ampwise._base.errors import UsageError
from ampwise.instruments.steps import StepWatcher
from ampwise.instruments.switches import SwitchWatch
from ampwise.interpose.own_amp import on_own_amp
from ampwise.observe.crash import read_crash
from ampwise.observe.dtypes import dtype_name
from ampwise.observe.events import BUS, EventBus
from ampwise.observe.live import live_objects
from ampwise.observe.loop import LoopWatcher
from ampwise.observe.modules import ModuleStack
from ampwise.records.files import save_recording
from ampwise.records.recording import Recording
from ampwise.records.run import Failure, Role, RunEnd, RunRecord
from ampwise.runner.environment import describe_environment
from ampwise.runner.failures import describe, end_of
from ampwise.runner.instruments import ROWS, Instrument, enter_instruments, rows_of
from ampwise.runner.spec import LaunchSpec, Malloc

if TYPE_CHECKING:
    from ampwise.records.crash import CrashRecord

ALL: Final = tuple(row.name for row in ROWS)
"""Every instrument, in the order they are entered."""
Models = nn.Module | Mapping[str, nn.Module]


class Watch:
    """Records a training loop while entered; see :func:`watch`.

    Law: whatever ends the block, nothing stays attached, and what was seen stays readable.
    """

    def __init__(
        self,
        model: Models | None = None,
        optimizer: Optimizer | None = None,
        *,
        instruments: Iterable[str] = ALL,
        bus: EventBus = BUS,
    ) -> None:
        self._spec = LaunchSpec(instruments=tuple(row.name for row in rows_of(_names(instruments))))
        self._models = _models(model)
        if optimizer is not None and not hasattr(optimizer, "param_groups"):
            kind = type(optimizer).__name__
            raise UsageError(f"watch() was given {kind} as its optimizer; give one torch.optim.Optimizer, or none")
        self._has_optimizer = optimizer is not None
        self._bus = bus
        self._undo = ExitStack()
        self._looking = ExitStack()
        self._steps: StepWatcher | None = None
        self._switches = SwitchWatch(bus)
        self._instruments: dict[str, Instrument] = {}
        self._own: str | None = None
        self._end = RunEnd.FINISHED
        self._failure: Failure | None = None
        self._crash: CrashRecord | None = None
        self._modules = ModuleStack()

    def __enter__(self) -> Self:
        if self._steps is not None:
            raise UsageError("this watch was used before; call ampwise.watch() again for another loop")
        with ExitStack() as undo:
            undo.callback(self._bus.share(self._loop))
            undo.callback(on_own_amp(self._on_own))
            for name, model in self._models.items():
                self._modules.names.add_root(model, name=name or None)
            self._steps = undo.enter_context(StepWatcher(self._bus))
            undo.enter_context(self._switches)
            undo.callback(self._looking.close)
            self._instruments = enter_instruments(self._bus, self._spec, self._looking, modules=self._modules)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._undo.close()
        if error is not None and not isinstance(error, (SystemExit, GeneratorExit)):
            self._end = RunEnd.KILLED if isinstance(error, KeyboardInterrupt) else end_of(error)
            self._failure = describe(error)
            self._crash = read_crash(error, names=self._modules.names)

    def rest(self) -> None:
        """End the instruments, which slow a loop; steps, losses and loss scales go on being recorded."""
        self._looking.close()

    @property
    def recording(self) -> Recording:
        """What was seen so far, as data; waits for the device.

        Raises:
            UsageError: nothing was watched yet.
        """
        if self._steps is None:
            raise UsageError("nothing was watched yet; enter it around the loop: with ampwise.watch() as rec: ...")
        return Recording(
            created=datetime.now().astimezone().isoformat(timespec="seconds"),
            command=tuple(sys.argv),
            environment=describe_environment(device=None, malloc=Malloc.SYSTEM, environ={}),
            runs=(self._run(self._steps),),
        )

    def save(self, path: str | Path) -> Path:
        """Write the recording to a file, which ``ampwise report`` shows; whole or not at all."""
        target = Path(path)
        save_recording(self.recording, target)
        return target

    def _run(self, steps: StepWatcher) -> RunRecord:
        sections = {field: one.record() for field, one in self._instruments.items()}
        slowed = frozenset[int]().union(*(one.slowed_steps for one in self._instruments.values()))
        usage = sections.get("usage")
        precision = (usage.autocast if usage is not None else None) or self._precision()
        return RunRecord(
            variant="watched",
            precision=precision,
            reason="as the loop has it",
            repeat=0,
            end=self._end,
            role=Role.WATCHED,
            steps=steps.records(untimed=slowed),
            watching_ms=steps.cost_ms,
            left_alone=self._own,
            failure=self._failure,
            crash=self._crash,
            switches=self._switches.record(),
            **sections,
        )

    def _precision(self) -> str:
        """The format of the models' parameters; fp32 where there are none."""
        for model in self._models.values():
            for parameter in model.parameters():
                return dtype_name(parameter.dtype)
        return "fp32"

    def _is_concerned(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer's steps are the loop's: it trains a model that is watched, or none is known."""
        watched = {id(one) for model in self._models.values() for one in model.parameters()}
        return not watched or any(id(one) in watched for group in optimizer.param_groups for one in group["params"])

    def _loop(self) -> LoopWatcher:
        has_optimizer = self._has_optimizer or any(map(self._is_concerned, live_objects(Optimizer)))
        return LoopWatcher(self._bus, has_optimizer=has_optimizer)

    def _on_own(self, what: str, *, in_dynamo: bool) -> None:  # noqa: ARG002 - a listener's signature
        self._own = self._own or what


def watch(
    model: Models | None = None, optimizer: Optimizer | None = None, *, instruments: Iterable[str] = ALL
) -> Watch:
    """A context manager that records what a training loop does, with the instruments of ``ampwise doctor``.

    Put it around some twenty steps of any loop: your own, ``ampwise.TrainStep``'s, Lightning's, Transformers'::

        with ampwise.watch(model, optimizer) as rec:
            for x, y in itertools.islice(loader, 20):
                train_step(x, y)
        rec.save("recording.json")
        print(ampwise.diagnose(rec))

    The first steps are slowed, each by one instrument; what one sees in its steps is not disturbed by the others. An
    exception passes through, and is part of the recording.

    Args:
        model: So that modules are named from it; a mapping names several. By default models are named by the variables
            that hold them.
        optimizer: So that the loop's steps are known for what they are; by default any optimizer's.
        instruments: Which of ``layout``, ``nonfinite``, ``numerics``, ``syncs``, ``casts``, ``memory``,
            ``against_fp32``, ``kernels``, ``process``, ``usage``, ``compilation``; by default all.

    Raises:
        UsageError: there is no instrument of that name, or the model or the optimizer is none.
    """
    return Watch(model, optimizer, instruments=instruments)


def _names(instruments: Iterable[str]) -> tuple[str, ...]:
    if isinstance(instruments, str):
        raise UsageError(f'instruments="{instruments}" is one text; write instruments=("{instruments}",)')
    return tuple(instruments)


def _models(model: Models | None) -> dict[str, nn.Module]:
    given: dict[Any, Any] = {} if model is None else dict(model) if isinstance(model, Mapping) else {"": model}
    for one in given.values():
        if not isinstance(one, torch.nn.Module):
            raise UsageError(f"watch() was given {type(one).__name__}; give a torch.nn.Module, or a mapping of them")
    return given

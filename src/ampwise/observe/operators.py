"""Shows an instrument every operator of the steps it asked for, and where in the loop each stands."""

import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol, Self

from ampwise.compat.autograd import is_inside_backward
from ampwise.compat.operators import (
    AroundOperators,
    Operator,
    is_foreign_mode_on,
    is_innermost,
    last_sequence_number,
    operator_of,
    running_sequence_number,
)
from ampwise.interpose.internal import is_internal
from ampwise.observe.events import (
    BackwardEnded,
    BackwardStarted,
    EventBus,
    ForwardEnded,
    ForwardStarted,
    StepOutcome,
    StepStarted,
)
from ampwise.observe.frames import Line, user_line
from ampwise.observe.modules import ModuleName, ModuleStack
from ampwise.observe.process import process_id
from ampwise.records.site import Phase, Site

_COST_NS = 20_000
"""What a watched operator costs more, of the host's time: the mode's own call and a listener's work."""

_MAX_ROUND = 10


class Spot(NamedTuple):
    """Where an operator ran; cheap to make, hash and compare."""

    phase: Phase
    module: ModuleName | None
    """Of the module being called, in backward of the one whose gradient is computed."""
    op: str

    def site(self, line: Line | None = None) -> Site:
        """The same as a record's value; ask late, since a module's path depends on what other models turn up."""
        return Site(
            phase=self.phase,
            module=None if self.module is None else self.module.path,
            op=self.op or None,
            file=None if line is None else line.shown_file,
            line=None if line is None else line.line,
        )


class OperatorListener(Protocol):
    """Stands around each operator of the steps watched."""

    def around(
        self,
        operator: Operator,
        proceed: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call ``proceed(*args, **kwargs)`` once and give back what it gave.

        Must not raise on its own account: what it raises ends the script.
        """
        ...


class LoopPhase:
    """Says which part of the loop is running, while entered."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._undo = ExitStack()
        self.phase = Phase.OTHER

    def __enter__(self) -> Self:
        phases = {
            ForwardStarted: Phase.FORWARD,
            ForwardEnded: Phase.OTHER,
            BackwardStarted: Phase.BACKWARD,
            BackwardEnded: Phase.OTHER,
            StepStarted: Phase.OPTIMIZER,
            StepOutcome: Phase.OTHER,
        }
        for kind, phase in phases.items():
            self._undo.callback(self._bus.subscribe(kind, lambda _, phase=phase: self._become(phase)))
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    def _become(self, phase: Phase) -> None:
        if phase is not Phase.FORWARD or self.phase is not Phase.OPTIMIZER:  # a closure's forward is the step's
            self.phase = phase


class OperatorSampler:
    """Shows ``listener`` the operators of some steps, while entered in the thread that trains.

    Step ``k`` is all from the end of step ``k - 1`` to its own end; a loop with several optimizers is watched on until
    each has stepped once, ten steps at most. The dispatch mode and the stack are entered for those steps only.
    ampwise's own operators are not shown; neither is what compiled code runs.

    Args:
        bus: Where the loop's events are published.
        listener: Stands around each operator.
        steps: Indices of the steps, in the order steps end; None: all.
        stack: Says which module is being called; by default one of its own.
        is_spotted: Whether the listener asks for the ``spot`` of gradients' operators, which costs a little at each.
    """

    def __init__(
        self,
        bus: EventBus,
        listener: OperatorListener,
        *,
        steps: Collection[int] | None,
        stack: ModuleStack | None = None,
        is_spotted: bool = True,
    ) -> None:
        self._bus = bus
        self._is_spotted = is_spotted
        self._listener = listener
        self._steps = steps
        self.stack = stack or ModuleStack()
        self._phase = LoopPhase(bus)
        self._undo = ExitStack()
        self._mode: AroundOperators | None = None
        self._calls = ExitStack()
        self._is_paused = False
        self._owner = (0, 0)
        self._forward: dict[int, ModuleName | None] = {}
        self._seen: list[int] = []
        self._optimizers: set[int] = set()
        self._awaited: set[int] = set()
        self._is_on = False
        self._step = 0
        self._num_over = 0
        self._num_operators = 0
        self.note: str | None = None
        """Why a step that was asked for was not watched."""

    def __enter__(self) -> Self:
        self._undo.enter_context(self._phase)
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        self._start_if_wanted()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
        self._is_on = False
        if self._is_paused:
            self._mode, self._is_paused = None, False
        self._leave()
        if self._mode is not None:
            self._mode.leave()  # once those are left that were entered within it
        self._calls.close()

    def pause(self) -> None:
        """Show no operator until ``resume``; where a mode of the script's lies within ours, go on."""
        mode = self._mode
        if mode is not None and self.is_here and is_innermost(mode):
            mode.__exit__(None, None, None)
            self._is_paused = True

    def resume(self) -> None:
        """Go on showing operators after ``pause``."""
        if self._is_paused and self._mode is not None:
            self._mode.__enter__()
        self._is_paused = False

    @property
    def is_paused(self) -> bool:
        """Whether operators of a step that is watched are left out."""
        return self._is_paused

    @property
    def step(self) -> int:
        """Index of the step that is going on."""
        return self._step

    @property
    def seen_steps(self) -> tuple[int, ...]:
        """Indices of the steps watched from start to end; a run that ended in its first has none."""
        return tuple(self._seen)

    @property
    def is_watching(self) -> bool:
        """Whether operators are being shown now."""
        return self._is_on

    @property
    def is_here(self) -> bool:
        """Whether it is this thread whose operators are being shown."""
        return self._is_on and self._owner == (process_id(), threading.get_ident())

    @property
    def cost_ms(self) -> float:
        """What watching added to a step watched, by the number of its operators."""
        return self._num_operators * _COST_NS / 1e6 / max(len(self._seen), 1)

    @property
    def is_recompute(self) -> bool:
        """Whether activation checkpointing runs a module's forward again, for a backward pass."""
        call = self.stack.call
        return call is not None and call.is_recompute

    def spot(self, operator: str) -> Spot:
        """Where the operator that is running stands."""
        number = None if self.is_recompute else running_sequence_number()
        if number is not None:
            return Spot(Phase.BACKWARD, self._forward.get(number), operator)
        phase = Phase.BACKWARD if is_inside_backward() else self._phase.phase
        return Spot(phase, self.stack.name, operator)

    def line(self) -> Line | None:
        """The user's own line that led here."""
        return user_line(2)

    def _on_step(self, event: StepOutcome) -> None:
        optimizer = id(event.optimizer)
        self._optimizers.add(optimizer)
        self._awaited.discard(optimizer)
        if self._is_on:
            self._seen.append(self._step)
            self._num_over += 1
        self._step += 1
        self._forward.clear()
        is_round_over = not self._awaited or self._num_over >= _MAX_ROUND
        if not self._is_wanted() and is_round_over:
            self._is_on = False
        self._leave()
        self._start_if_wanted()

    def _is_wanted(self) -> bool:
        return self._steps is None or self._step in self._steps

    def _start_if_wanted(self) -> None:
        if not self._is_wanted():
            return
        self._awaited, self._num_over = set(self._optimizers), 0
        if self._mode is None and is_foreign_mode_on():
            self.note = "not watched: the script's own dispatch mode is on"
            return
        self._is_on = True
        if self._mode is None:
            self._owner = (process_id(), threading.get_ident())
            self._calls.enter_context(self.stack)
            self._mode = AroundOperators(self._around)
            self._mode.__enter__()

    def _leave(self) -> None:
        """Leave the mode where that disturbs none that was entered within it; else it passes operators through."""
        mode = self._mode
        if (
            mode is not None
            and not self._is_on
            and self._owner == (process_id(), threading.get_ident())
            and is_innermost(mode)
        ):
            mode.__exit__(None, None, None)
            self._mode = None
            self._calls.close()

    def _around(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_internal() or not self._is_on or self._owner[0] != process_id():
            return func(*args, **kwargs)
        self._num_operators += 1
        result = self._listener.around(operator_of(func), func, args, kwargs)
        if self._is_spotted and running_sequence_number() is None:
            self._forward.setdefault(last_sequence_number(), self.stack.name)
        return result

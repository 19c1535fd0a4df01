"""The events of a training loop, and the bus that carries them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ampwise.records.switches import SwitchRecord

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

Undo = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStarted:
    """An outermost module is about to be called."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardEnded:
    """An outermost module has returned."""

    module: Any
    output: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardStarted:
    """A top-level backward pass is about to run from ``roots`` (the losses, unscaled)."""

    roots: "tuple[Tensor, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardEnded:
    """A top-level backward pass has run."""

    roots: "tuple[Tensor, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """An outermost optimizer step is about to run."""

    optimizer: "Optimizer | None"
    is_all: bool = False
    """Whether nothing but its own ``step`` runs until the outcome: gradients stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """A training step has ended.

    ``optimizer`` is None where the script updates its parameters by hand. ``stepped`` may be a 0-dim bool
    tensor on the device: it is read only when somebody asks.
    """

    optimizer: "Optimizer | None"
    stepped: "bool | Tensor" = True
    scale: "float | Tensor | None" = None
    grad_norm: "Tensor | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionTaken:
    """The loop takes its precision into its own hands, from here on."""

    what: str
    """By what, and which precision: ``ampwise.TrainStep (fp32)``."""
    low: str | None = None
    """The format below fp32 that it computes in, where no autocast of torch's tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSwitched:
    """A group of modules computes in another format from its next call on."""

    switch: SwitchRecord
    """By the scheduler's own count of steps."""


LoopEvent = (
    ForwardStarted
    | ForwardEnded
    | BackwardStarted
    | BackwardEnded
    | StepStarted
    | StepOutcome
    | PrecisionTaken
    | PrecisionSwitched
)
E = TypeVar("E", bound=LoopEvent)


@dataclass(slots=True, kw_only=True)
class _Supplier:
    """Somebody who can find events of some kinds, and does so only if they are wanted."""

    kinds: tuple[type[LoopEvent], ...]
    start: Callable[[], Undo]
    _stop: Undo | None = None

    def attach(self) -> None:
        if self._stop is None:
            self._stop = self.start()

    def detach(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()


@dataclass(slots=True)
class EventBus:
    """Carries events from whoever sees them to whoever asked for their kind, in the order of subscription.

    Law: a listener is called once for each event of its kind between its subscription and its undo, and after
    the undo never.
    """

    _listeners: dict[type[Any], tuple[Callable[[Any], None], ...]] = field(default_factory=dict)
    _suppliers: "tuple[_Supplier, ...]" = ()
    _shared: ExitStack = field(default_factory=ExitStack)
    _num_sharers: int = 0

    def subscribe(self, kind: type[E], listener: Callable[[E], None]) -> Undo:
        """Call ``listener`` with every event of ``kind`` until the returned undo is called."""
        self._listeners[kind] = (*self._listeners.get(kind, ()), listener)
        for supplier in self._suppliers:
            if kind in supplier.kinds:
                supplier.attach()

        def undo() -> None:
            self._listeners[kind] = tuple(one for one in self._listeners.get(kind, ()) if one is not listener)

        return undo

    def wants(self, kind: type[LoopEvent]) -> bool:
        """Whether anybody listens: a publisher may spare itself the work."""
        return bool(self._listeners.get(kind))

    def supply(self, kinds: tuple[type[LoopEvent], ...], start: Callable[[], Undo]) -> Undo:
        """Call ``start`` once somebody listens to one of ``kinds``, now or later: who looks costs time.

        The returned undo calls what ``start`` returned.
        """
        supplier = _Supplier(kinds=kinds, start=start)
        self._suppliers = (*self._suppliers, supplier)
        if any(self.wants(kind) for kind in kinds):
            supplier.attach()

        def undo() -> None:
            self._suppliers = tuple(one for one in self._suppliers if one is not supplier)
            supplier.detach()

        return undo

    def share(self, make: Callable[[], AbstractContextManager[Any]]) -> Undo:
        """Have a loop's events looked for until the returned undo is called, by one only: two would tell of each twice.

        Where nobody does, what ``make`` gives is entered; it is left with the last who shares it, in whatever order
        they end.
        """
        if self._suppliers and not self._num_sharers:
            return lambda: None  # whoever runs the script looks for them throughout
        if not self._num_sharers:
            self._shared.enter_context(make())
        self._num_sharers += 1
        return self._leave_shared

    def _leave_shared(self) -> None:
        self._num_sharers -= 1
        if not self._num_sharers:
            self._shared.close()

    def publish(self, event: LoopEvent) -> None:
        """Hand ``event`` to every listener of its kind."""
        for listener in self._listeners.get(type(event), ()):
            listener(event)


BUS = EventBus()
"""The process's own. Loops are found by what they call, not handed to us, so their events meet at one place."""

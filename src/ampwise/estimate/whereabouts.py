"""Where a loop is at any moment: the pass, the module and the user's line."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ampwise.compat.autograd import is_inside_backward
from ampwise.compat.imaginary import local_of
from ampwise.estimate.ledger import Ledger, Storage
from ampwise.estimate.spot import Spot
from ampwise.observe.events import (
    BackwardEnded,
    BackwardStarted,
    EventBus,
    ForwardEnded,
    ForwardStarted,
    StepOutcome,
    StepStarted,
)
from ampwise.observe.frames import user_line
from ampwise.observe.modules import ModuleStack
from ampwise.records.memory import MemoryCategory
from ampwise.records.site import Phase


class Whereabouts:
    """Follows a loop's events, and learns from them what each storage is for.

    Args:
        bus: Where the loop's events are published.
        modules: Knows which module is being called.
        ledger: Whose storages are told apart.
    """

    def __init__(self, bus: EventBus, *, modules: ModuleStack, ledger: Ledger) -> None:
        self.num_steps = 0
        self.known: dict[int, MemoryCategory] = {}
        """What storages are for, by their time of birth."""
        self.num_parameters = 0
        """Of the largest model called."""
        self.names: dict[int, str] = {}
        """The module that a parameter's storage belongs to."""
        self._bus = bus
        self._modules = modules
        self._ledger = ledger
        self._phase = Phase.OTHER
        self._forward_time: int | None = None
        """When the first forward pass since the last step began."""
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        for kind, listener in (
            (ForwardStarted, self._on_forward),
            (ForwardEnded, self._on_forward_end),
            (BackwardStarted, self._on_backward),
            (BackwardEnded, self._on_backward_end),
            (StepStarted, self._on_step),
            (StepOutcome, self._on_step_end),
        ):
            self._undo.callback(self._bus.subscribe(kind, listener))  # pyright: ignore[reportArgumentType] # they match
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    def spot(self, op: Any) -> Spot:
        """Where the operator runs."""
        phase = Phase.BACKWARD if is_inside_backward() else self._phase
        return Spot(phase, self._modules.name, op, user_line(2))

    @contextmanager
    def holding_gradients(self) -> Generator[None]:
        """What is made within and stays holds gradients: DDP's buckets."""
        start = self._ledger.time
        yield
        self.known |= {one.born: MemoryCategory.GRADIENT for one in self._ledger.alive() if one.born >= start}

    def _on_forward(self, event: ForwardStarted) -> None:
        self._phase = Phase.FORWARD
        if self._forward_time is None:
            self._forward_time = self._ledger.time
        if isinstance(event.module, nn.Module):
            self._take_parameters(event.module)

    def _on_forward_end(self, _: ForwardEnded) -> None:
        self._phase = Phase.OTHER

    def _on_backward(self, _: BackwardStarted) -> None:
        self._phase = Phase.BACKWARD
        # what was made since the forward pass began and still is held, the loss included, is held for this pass
        start = self._ledger.time if self._forward_time is None else self._forward_time
        for storage in self._ledger.alive():
            if storage.born >= start and storage.spot.phase in {Phase.FORWARD, Phase.OTHER}:
                self.known.setdefault(storage.born, MemoryCategory.ACTIVATION)

    def _on_backward_end(self, _: BackwardEnded) -> None:
        self._phase = Phase.OTHER

    def _on_step(self, event: StepStarted) -> None:
        self._phase = Phase.OPTIMIZER
        for parameter in _parameters(event.optimizer):
            self._know(parameter, MemoryCategory.PARAMETER)
            self._know(parameter.grad, MemoryCategory.GRADIENT)

    def _on_step_end(self, event: StepOutcome) -> None:
        self._phase = Phase.OTHER
        self._forward_time = None
        self.num_steps += 1
        self._ledger.mark(f"step {self.num_steps}")
        state: dict[Any, Any] = getattr(event.optimizer, "state", {})
        for kept in state.values():
            for value in kept.values() if isinstance(kept, dict) else ():
                self._know(value, MemoryCategory.OPTIMIZER_STATE)

    def num_steps_at(self, storage: Storage) -> int:
        """How many steps had ended when the storage was born."""
        return sum(moment.time <= storage.born for moment in self._ledger.moments)

    def category_of(self, storage: Storage) -> MemoryCategory:
        """What a storage is for. The first that holds: workspace, what the events told, cast, data, temporary."""
        if storage.is_workspace:
            return MemoryCategory.WORKSPACE
        known = self.known.get(storage.born)
        if storage.is_cast and known in {None, MemoryCategory.ACTIVATION}:
            return MemoryCategory.CAST
        if known is MemoryCategory.ACTIVATION and storage.is_from_host:
            return MemoryCategory.OTHER
        if known is not None:
            return known
        is_between = storage.spot.phase is Phase.OTHER and self.num_steps_at(storage) == 0
        return MemoryCategory.OTHER if storage.is_from_host or is_between else MemoryCategory.TEMPORARY

    def _take_parameters(self, module: nn.Module) -> None:
        self.num_parameters = max(
            self.num_parameters, sum(one.numel() for one in module.parameters() if not is_lazy(one))
        )
        for one in module.modules():
            name = self._modules.names.name_of(one, parent=None if one is module else module)
            for tensor in (*one.parameters(recurse=False), *one.buffers(recurse=False)):
                storage = self._know(tensor, MemoryCategory.PARAMETER)
                if storage is not None and name is not None:
                    self.names.setdefault(storage.born, name.path)

    def _know(self, tensor: Any, category: MemoryCategory) -> Storage | None:
        storage = self._ledger.of(local_of(tensor)) if isinstance(tensor, Tensor) and not is_lazy(tensor) else None
        if storage is not None:
            self.known[storage.born] = category
        return storage


def _parameters(optimizer: Any) -> list[Tensor]:
    return [one for group in getattr(optimizer, "param_groups", ()) for one in group["params"]]

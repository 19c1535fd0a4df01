"""Follows every storage through one step, and says what each was for."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch.optim import Optimizer

from ampwise.compat.memory import gradient_of, has_compiled_code
from ampwise.compat.operators import Operator
from ampwise.instruments.storages import Storage, StorageLog
from ampwise.observe.dtypes import tensors_in
from ampwise.observe.events import (
    BackwardEnded,
    BackwardStarted,
    EventBus,
    ForwardStarted,
    StepOutcome,
    StepStarted,
)
from ampwise.observe.live import live_objects
from ampwise.observe.modules import ModuleName, ModuleStack
from ampwise.observe.operators import OperatorSampler
from ampwise.records.memory import MemoryCategory, MemoryRecord
from ampwise.records.site import Phase

_OF_FORWARD = frozenset({Phase.FORWARD, Phase.OTHER})
_KEPT = frozenset({MemoryCategory.PARAMETER, MemoryCategory.GRADIENT, MemoryCategory.OPTIMIZER_STATE})


class MemoryTimeline:
    """Follows the storages of step ``step``, while entered in the thread that trains.

    What was there before is sorted by who holds it: parameters and buffers, gradients, optimizers' states, the rest.
    What is born in the step is, in this order: a gradient or state if it becomes one, a cast if it is a copy in another
    dtype, an activation if it was made since a model was called and lives when backward begins, else temporary.

    Not seen: temporaries inside an operator's kernel, and what compiled code allocates. Where a tensor has several uses
    autograd sums its gradients out of place under a dispatch mode: one more tensor of its size may be counted.
    """

    def __init__(self, bus: EventBus, *, step: int = 3, stack: ModuleStack | None = None) -> None:
        self._bus = bus
        self._step = step
        self._sampler = OperatorSampler(bus, self, steps=(step,), stack=stack)
        self._undo = ExitStack()
        self._log = StorageLog()
        self._parameters: dict[int, tuple[weakref.ref[torch.Tensor], ModuleName | None]] = {}
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._has_forward = False
        self._is_open = False
        self._cached_casts: list[Storage] = []
        self._fault: str | None = None
        self.cached_cast_bytes = 0
        """Casts of parameters that outlived the step."""

    def __enter__(self) -> Self:
        self._undo.enter_context(self._sampler)
        for kind, listener in (
            (ForwardStarted, self._on_forward),
            (BackwardStarted, self._on_backward),
            (BackwardEnded, self._on_backward_end),
            (StepStarted, self._on_step_start),
            (StepOutcome, self._on_step),
        ):
            self._undo.callback(self._bus.subscribe(kind, listener))  # pyright: ignore[reportArgumentType] # they match
        self._open_if_wanted()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
        self._close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing."""
        return frozenset(self._sampler.seen_steps)

    @property
    def note(self) -> str | None:
        """Why there is no timeline, or what it cannot see; None where there is nothing to say."""
        if self._fault or self._sampler.note:
            return self._fault or self._sampler.note
        if not self._sampler.seen_steps:
            return f"no timeline: the run ended before step {self._step + 1} did"
        return "what compiled code allocates is not in it" if has_compiled_code() else None

    def record(self) -> MemoryRecord:
        """The timeline; without one where the step was not reached."""
        device = self._log.device() if self._sampler.seen_steps and self._fault is None else None
        if device is None:
            return MemoryRecord(note=self.note)
        points, peak, owners = self._log.points(device)
        return MemoryRecord(
            step=self._step,
            device=str(device),
            points=tuple(points),
            peak=peak,
            owners=tuple(owners),
            cost_ms=self._sampler.cost_ms,
            note=self.note,
        )

    def around(
        self, operator: Operator, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator and note the storages it made."""
        result = proceed(*args, **kwargs)
        if self._is_open and self._fault is None:
            try:
                self._note(operator, args, kwargs, result)
            except Exception as error:  # noqa: BLE001 # counting must not end somebody's training
                self._fault = f"no timeline: {type(error).__name__}: {error}"
        return result

    def _note(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        inputs = list(tensors_in(args, *kwargs.values()))
        for tensor in inputs:
            if isinstance(tensor, torch.nn.Parameter):
                self._add_parameter(tensor, self._sampler.stack.name)
            self._log.see(tensor)
        for tensor in tensors_in(result):
            if not self._log.is_new(tensor):
                self._log.see(tensor)
                continue
            spot = self._sampler.spot(operator.name)
            self._log.phase = spot.phase
            for storage in self._log.see(tensor, born=spot, line=self._sampler.line()):
                if spot.phase is Phase.OTHER and not self._has_forward:
                    storage.category = MemoryCategory.OTHER  # the data, read before the model is called
                else:
                    self._sort_cast(storage, operator, inputs, tensor)

    def _sort_cast(self, storage: Storage, operator: Operator, inputs: list[torch.Tensor], made: torch.Tensor) -> None:
        is_cast = operator.name == "aten._to_copy" and inputs and inputs[0].dtype != made.dtype
        if is_cast and storage.born is not None and storage.born.phase is not Phase.BACKWARD:
            storage.category = MemoryCategory.CAST
            if isinstance(inputs[0], torch.nn.Parameter):
                self._cached_casts.append(storage)

    def _open_if_wanted(self) -> None:
        """Sort what is there when the step begins."""
        if self._is_open or not self._sampler.is_watching:
            return
        self._is_open = True
        self._has_forward = False
        for one in live_objects(torch.Tensor, Optimizer, torch.nn.Module):
            match one:
                case torch.nn.Parameter():
                    self._add_parameter(one, None)
                case torch.Tensor():
                    self._log.see(one)
                case Optimizer():
                    self._optimizers.add(one)
                case _:
                    for buffer in one.buffers(recurse=False):
                        self._mark(buffer, MemoryCategory.PARAMETER, None)
        self._sort()

    def _add_parameter(self, parameter: torch.Tensor, module: ModuleName | None) -> None:
        reference, known = self._parameters.get(id(parameter), (None, None))
        if reference is None or reference() is not parameter or (known is None and module is not None):
            self._parameters[id(parameter)] = (weakref.ref(parameter), module)
            self._mark(parameter, MemoryCategory.PARAMETER, module)

    def _mark(self, tensor: torch.Tensor, category: MemoryCategory, module: ModuleName | None) -> None:
        for storage in self._log.see(tensor):
            if storage.category not in _KEPT or storage.module is None:
                storage.category, storage.module = category, module

    def _on_forward(self, _: ForwardStarted) -> None:
        self._has_forward = True

    def _on_backward(self, _: BackwardStarted) -> None:
        """What was made since a model was called, and is still there, waits for this pass."""
        if not self._is_open:
            return
        for storage in self._log.live:
            if storage.category is None and storage.born is not None and storage.born.phase in _OF_FORWARD:
                storage.category = MemoryCategory.ACTIVATION
        self._log.phase = Phase.BACKWARD

    def _on_backward_end(self, _: BackwardEnded) -> None:
        self._has_forward = False
        self._sort()

    def _on_step_start(self, _: StepStarted) -> None:
        self._sort()

    def _on_step(self, event: StepOutcome) -> None:
        if self._is_open and not self._sampler.is_watching:
            if event.optimizer is not None:
                self._optimizers.add(event.optimizer)
            self._sort()
            live = set(map(id, self._log.live))
            self.cached_cast_bytes = sum(cast.size for cast in self._cached_casts if id(cast) in live)
            self._close()
        self._open_if_wanted()

    def _sort(self) -> None:
        """Find what has become a gradient or an optimizer's state."""
        if not self._is_open:
            return
        for reference, module in list(self._parameters.values()):
            parameter = reference()
            gradient = None if parameter is None else gradient_of(parameter)
            if gradient is not None:
                self._mark(gradient, MemoryCategory.GRADIENT, module)
        for optimizer in list(self._optimizers):
            for parameter, tensor in _states(optimizer):
                module = self._parameters.get(id(parameter), (None, None))[1]
                self._mark(tensor, MemoryCategory.OPTIMIZER_STATE, module)

    def _close(self) -> None:
        self._is_open = False
        self._log.close()


def _states(optimizer: Optimizer) -> Iterator[tuple[Any, torch.Tensor]]:
    for parameter, state in optimizer.state.items():
        values = state.values() if isinstance(state, dict) else ()
        for tensor in tensors_in(*values):
            yield parameter, tensor

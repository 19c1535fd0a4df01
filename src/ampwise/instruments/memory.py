"""Counts every storage's birth and death in one step of a training loop."""

import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Self

import torch

from ampwise.compat.memory import gradient_of, has_compiled_code, storages_of
from ampwise.compat.operators import AroundOperators, is_any_mode_on, is_innermost
from ampwise.interpose.internal import is_internal
from ampwise.observe.dtypes import tensors_in
from ampwise.observe.events import EventBus, StepOutcome
from ampwise.observe.live import live_objects
from ampwise.observe.process import process_id

_MAX_STEPS = 10
"""A script with many optimizers is watched for at most this many optimizer steps."""


class Ledger:
    """How many bytes the storages seen hold now, and the most they ever held, for each device.

    A storage is counted once however many tensors share it, from when it is first seen until it dies.
    """

    def __init__(self) -> None:
        self._live: dict[int, tuple[weakref.ref[Any], int, torch.device]] = {}
        self.current_bytes: dict[torch.device, int] = {}
        self.peak_bytes: dict[torch.device, int] = {}

    def see(self, storage: torch.UntypedStorage) -> None:
        """Count ``storage`` if it is new, and its new size if it was resized."""
        if storage.device.type == "meta":
            return
        key, size = id(storage), storage.nbytes()
        known = self._live.get(key)
        if known is not None:
            reference, old_size, device = known
            if size != old_size:
                self._live[key] = (reference, size, device)
                self._add(device, size - old_size)
            return
        reference = weakref.ref(storage, lambda _: self._bury(key))
        self._live[key] = (reference, size, storage.device)
        self._add(storage.device, size)

    def _bury(self, key: int) -> None:
        _, size, device = self._live.pop(key, (None, 0, torch.device("cpu")))
        self._add(device, -size)

    def _add(self, device: torch.device, size: int) -> None:
        current = self.current_bytes.get(device, 0) + size
        self.current_bytes[device] = current
        self.peak_bytes[device] = max(self.peak_bytes.get(device, 0), current)


class PeakMemory:
    """Finds the largest sum of live tensors in one step, while entered in the thread that trains.

    From the end of step ``step - 1`` to the end of step ``step`` a dispatch mode sees every operator. Tensors that are
    alive at its start are found among all objects; an optimizer's state counts from its birth. A loop with several
    optimizers is watched until each has stepped once, ten steps at most.

    Not seen: temporaries inside an operator's kernel, and what compiled code allocates (then there is no figure).
    Gradients that autograd sums in place otherwise are summed out of place under a dispatch mode, as under any
    torch.distributed MemTracker: where a tensor has several uses, one more tensor of its size may be counted.

    The cost: the steps in ``slowed_steps`` take longer by some 20 microseconds an operator; leave out their times.

    Args:
        bus: Where the loop's events are published.
        step: Index of the step, in the order steps end.
    """

    def __init__(self, bus: EventBus, *, step: int) -> None:
        self._bus = bus
        self._step = step
        self._undo = ExitStack()
        self._ledger = Ledger()
        self._mode: AroundOperators | None = None
        self._owner = (0, 0)
        self._num_ended = 0
        self._optimizers: set[int] = set()
        self._awaited: set[int] = set()
        self._slowed: list[int] = []
        self._is_watching = False
        self._is_complete = False
        self._note: str | None = None

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        if self._step == 0:
            self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()
        self._is_watching = False
        self._leave()

    @property
    def peak_tensor_bytes(self) -> int | None:
        """Most bytes alive at once on the busiest accelerator, else on the CPU; None where it could not be had."""
        if not self._is_complete or self.note is not None:
            return None
        peaks = self._ledger.peak_bytes
        on_accelerators = [size for device, size in peaks.items() if device.type != "cpu" and size]
        return max(on_accelerators) if on_accelerators else sum(peaks.values())

    @property
    def peak_allocated_bytes(self) -> int | None:
        """``torch.cuda.max_memory_allocated`` of the busiest GPU so far; None where CUDA was not used."""
        if not torch.cuda.is_initialized():
            return None
        return max(torch.cuda.max_memory_allocated(index) for index in range(torch.cuda.device_count()))

    @property
    def slowed_steps(self) -> frozenset[int]:
        """Indices of the steps whose time says nothing."""
        return frozenset(self._slowed)

    @property
    def note(self) -> str | None:
        """Why there is no figure; None where there is one."""
        if self._note is None and not self._is_complete:
            return f"peak tensor memory not measured: the run ended before step {self._step + 1} did"
        if self._note is None and has_compiled_code():
            return "peak tensor memory not measured: what compiled code allocates cannot be seen"
        return self._note

    def _on_step(self, event: StepOutcome) -> None:
        optimizer = id(event.optimizer)
        if self._is_watching:
            self._slowed.append(self._num_ended)
            self._awaited.discard(optimizer)
            if not self._awaited or len(self._slowed) >= _MAX_STEPS:
                self._is_watching = False
                self._is_complete = True
        self._optimizers.add(optimizer)
        self._num_ended += 1
        self._leave()
        if self._num_ended == self._step:
            self._awaited = set(self._optimizers)
            self._start()

    def _start(self) -> None:
        """Count what is alive, then watch what comes and goes."""
        if is_any_mode_on():
            self._note = "peak tensor memory not measured: the script's own dispatch mode is on"
            return
        try:
            for tensor in _live_tensors():
                self._see(tensor)
        except Exception as error:  # noqa: BLE001 # counting must not end somebody's training
            self._fail(error)
            return
        self._mode = AroundOperators(self._around)
        self._owner = (process_id(), threading.get_ident())
        self._is_watching = True
        self._mode.__enter__()

    def _leave(self) -> None:
        """Leave the mode once nobody watches and it disturbs no mode that the script entered within it."""
        is_mine = self._owner == (process_id(), threading.get_ident())
        if self._mode is not None and not self._is_watching and is_mine and is_innermost(self._mode):
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _around(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if self._is_watching and not is_internal() and process_id() == self._owner[0]:
            try:
                for tensor in tensors_in(result, args, *kwargs.values()):
                    self._see(tensor)
            except Exception as error:  # noqa: BLE001 # counting must not end somebody's training
                self._fail(error)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        for storage in storages_of(tensor):
            self._ledger.see(storage)

    def _fail(self, error: Exception) -> None:
        self._is_watching = False
        self._note = f"peak tensor memory not measured: {type(error).__name__}: {error}"


def _live_tensors() -> Iterable[torch.Tensor]:
    """Every tensor that Python can reach, and their gradients."""
    for tensor in live_objects(torch.Tensor):
        yield tensor
        gradient = gradient_of(tensor)
        if gradient is not None:
            yield gradient

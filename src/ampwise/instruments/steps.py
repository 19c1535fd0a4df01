"""Watches a training loop's steps: their losses, times, samples, skips and scales."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias
from weakref import WeakKeyDictionary

import torch

from ampwise.instruments.clocks import Clock, clock_of
from ampwise.interpose.internal import internal
from ampwise.observe.dtypes import leaf_tensors
from ampwise.observe.events import BackwardEnded, BackwardStarted, EventBus, ForwardStarted, StepOutcome, StepStarted
from ampwise.records.run import StepRecord

Later: TypeAlias = float | torch.Tensor
"""A number that may still be on its way from the device."""

_WINDOW = 256
"""Steps after which waiting losses are fetched from the device: one sync in so many, and no heap of tiny tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MicroBatch:
    """What one backward pass came from."""

    losses: tuple[Later, ...]
    num_samples: int


def _micro_batches(known: Iterable[_MicroBatch] = ()) -> deque[_MicroBatch]:
    """A bounded list: an optimizer that never steps again must not gather losses for ever."""
    return deque(known, maxlen=4096)


@dataclass(slots=True, kw_only=True)
class _Optimizer:
    """What is known of one optimizer."""

    number: int
    since_own: deque[_MicroBatch] = field(default_factory=_micro_batches)
    last_index: int = -1
    last_end: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitingStep:
    """A step whose numbers have not been read yet."""

    index: int
    optimizer: int
    since: int
    """Index of the same optimizer's step before it: its time counts all that came after."""
    losses: tuple[Later, ...]
    start: Any
    first_backward: Any
    """Mark of the first backward pass since any step; None where none was seen."""
    end: Any
    num_samples: int | None
    stepped: bool | torch.Tensor
    scale: Later | None


class StepWatcher:
    """Records every optimizer step that ``bus`` tells of, while entered.

    Nothing waits for the device: losses stay on it and moments are marked in its stream until ``records`` is called
    or 256 steps wait. On a CPU losses are read at once, so a script may overwrite them.

    Which losses and samples belong to a step: those since the last step of any optimizer; if there are none (one
    backward pass, several optimizers), those since the same optimizer's last step.

    Args:
        bus: Where the loop's events are published.
        keep: How many of the last steps are kept; None keeps all.
        clock_for: Gives the clock of the device that the first loss lies on.
        evaluates: A step is a forward pass without gradients; it is timed from its own start, on its inputs' device.

    Enter it before other instruments: what they do at a step's end then counts for the next step.
    """

    def __init__(
        self,
        bus: EventBus,
        *,
        keep: int | None = None,
        clock_for: Callable[[torch.device], Clock] = clock_of,
        evaluates: bool = False,
    ) -> None:
        self._bus = bus
        self._evaluates = evaluates
        self._clock_for = clock_for
        self._clock: Clock | None = None
        self._device = torch.device("cpu")
        self._undo = ExitStack()
        self._done: deque[tuple[StepRecord, int]] = deque(maxlen=keep)
        self._waiting: list[_WaitingStep] = []
        self._optimizers: WeakKeyDictionary[Any, _Optimizer] = WeakKeyDictionary()
        self._by_hand: _Optimizer | None = None
        self._num_optimizers = 0
        self._since_any = _micro_batches()
        self._last_used = _micro_batches()
        self._num_samples = 0
        self._is_in_backward = False
        self._first_backward: Any = None
        self._num_steps = 0
        self._cost_s = 0.0

    def __enter__(self) -> Self:
        for kind, listener in (
            (ForwardStarted, self._on_forward),
            (BackwardStarted, self._on_backward),
            (BackwardEnded, self._on_backward_end),
            (StepStarted, self._on_start),
            (StepOutcome, self._on_step),
        ):
            self._undo.callback(self._bus.subscribe(kind, listener))  # pyright: ignore[reportArgumentType] # they match
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def num_steps(self) -> int:
        """How many steps have ended."""
        return self._num_steps

    @property
    def cost_ms(self) -> float:
        """What watching added to a step of the host's time, on average."""
        return self._cost_s * 1_000 / max(self._num_steps, 1)

    def records(self, *, untimed: AbstractSet[int] = frozenset()) -> tuple[StepRecord, ...]:
        """What was seen of each step; waits for the device.

        Args:
            untimed: Indices of steps that another instrument slowed; a time that spans one of them is left out.
        """
        self._settle()
        return tuple(
            _without_time(record) if any(since < index <= record.index for index in untimed) else record
            for record, since in self._done
        )

    def _on_forward(self, event: ForwardStarted) -> None:
        # neither evaluation nor the recomputation of a checkpoint trains on new samples
        if not self._is_in_backward and torch.is_grad_enabled() is not self._evaluates:
            with self._costed():
                if self._evaluates and self._clock is None:
                    inputs = (*leaf_tensors(event.args), *leaf_tensors(event.kwargs))
                    self._device = inputs[0].device if inputs else self._device
                size = leading_dimension(event.args, event.kwargs)
                before = 0 if self._evaluates else self._num_samples
                self._num_samples = max(before, size or 0)

    def _on_backward(self, event: BackwardStarted) -> None:
        with self._costed():
            self._is_in_backward = True
            losses = tuple(_kept(root) for root in event.roots if _is_loss(root))
            micro_batch = _MicroBatch(losses=losses, num_samples=self._num_samples)
            self._num_samples = 0
            if event.roots and self._clock is None:
                self._device = event.roots[0].device
            if self._clock is not None and self._first_backward is None:
                self._first_backward = self._clock.mark()
            self._since_any.append(micro_batch)
            for optimizer in (*self._optimizers.values(), *([self._by_hand] if self._by_hand else [])):
                optimizer.since_own.append(micro_batch)

    def _on_backward_end(self, _: BackwardEnded) -> None:
        self._is_in_backward = False

    def _on_start(self, event: StepStarted) -> None:
        if self._evaluates:
            with self._costed():
                if self._clock is None:
                    self._clock = self._clock_for(self._device)
                self._optimizer_of(event.optimizer).last_end = self._clock.mark()

    def _on_step(self, event: StepOutcome) -> None:
        with self._costed():
            self._is_in_backward = False
            if self._clock is None:
                self._clock = self._clock_for(self._device)
            optimizer = self._optimizer_of(event.optimizer)
            used = self._take(optimizer)
            step = _WaitingStep(
                index=self._num_steps,
                optimizer=optimizer.number,
                since=optimizer.last_index,
                losses=tuple(loss for one in used for loss in one.losses),
                start=optimizer.last_end,
                first_backward=self._first_backward,
                end=self._clock.mark(),
                num_samples=self._num_evaluated() if self._evaluates else sum(one.num_samples for one in used) or None,
                stepped=_snapshot(event.stepped),
                scale=_snapshot(event.scale),
            )
            self._waiting.append(step)
            optimizer.last_index, optimizer.last_end, self._first_backward = step.index, step.end, None
            self._num_steps += 1
            if len(self._waiting) >= _WINDOW:
                self._settle()

    def _optimizer_of(self, optimizer: Any) -> _Optimizer:
        """What is known of it; optimizers are numbered in the order of first use."""
        if optimizer is None:
            self._by_hand = self._by_hand or _Optimizer(number=0)
            return self._by_hand
        if optimizer not in self._optimizers:
            # a new optimizer that shares the backward pass of the one before it used the same losses
            since_own = _micro_batches(self._last_used)
            self._optimizers[optimizer] = _Optimizer(number=self._num_optimizers, since_own=since_own)
            self._num_optimizers += 1
        return self._optimizers[optimizer]

    def _num_evaluated(self) -> int | None:
        """How many samples the forward pass was given."""
        number, self._num_samples = self._num_samples, 0
        return number or None

    def _take(self, optimizer: _Optimizer) -> deque[_MicroBatch]:
        """What this step used; both counts start anew."""
        used = self._since_any or optimizer.since_own
        self._last_used, self._since_any, optimizer.since_own = used, _micro_batches(), _micro_batches()
        return used

    def _settle(self) -> None:
        """Read what waits on the device."""
        waiting, self._waiting = self._waiting, []
        with internal():
            self._done.extend((self._read(step), step.since) for step in waiting)

    def _read(self, step: _WaitingStep) -> StepRecord:
        losses = [float(loss) for loss in step.losses]
        has_time = self._clock is not None and step.start is not None
        has_ahead = has_time and step.first_backward is not None and step.since == step.index - 1
        return StepRecord(
            index=step.index,
            optimizer=step.optimizer,
            loss=sum(losses) if losses else None,
            time_ms=self._clock.ms_between(step.start, step.end) if self._clock and has_time else None,
            ahead_ms=self._clock.ms_between(step.start, step.first_backward) if self._clock and has_ahead else None,
            num_samples=step.num_samples,
            skipped=not bool(step.stepped),
            scale=None if step.scale is None else float(step.scale),
        )

    @contextmanager
    def _costed(self) -> Generator[None]:
        start = time.perf_counter()
        with internal():
            yield
        self._cost_s += time.perf_counter() - start


def leading_dimension(*arguments: Any) -> int | None:
    """How many samples the first tensor among ``arguments`` holds, looked for in lists, tuples and mappings too."""
    for argument in arguments:
        size = None
        if isinstance(argument, torch.Tensor):
            size = argument.shape[0] if argument.dim() else None
        elif isinstance(argument, Mapping):
            size = leading_dimension(*argument.values())
        elif isinstance(argument, (list, tuple)):
            size = leading_dimension(*argument)
        if size is not None:
            return int(size)
    return None


def _is_loss(root: torch.Tensor) -> bool:
    return root.numel() == 1 and not root.is_complex() and not root.is_meta


def _kept(loss: torch.Tensor) -> Later:
    """A value that later writes of the script cannot change."""
    return loss.item() if loss.device.type == "cpu" else loss.detach().clone()


def _snapshot(value: Any) -> Any:
    return _kept(value) if isinstance(value, torch.Tensor) else value


def _without_time(record: StepRecord) -> StepRecord:
    return replace(record, time_ms=None, ahead_ms=None)

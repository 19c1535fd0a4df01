"""Follows a script's own gradient scaler: which losses it scaled, at which scale a step is, which step it skips."""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from ampwise.compat.autocast import is_enabled
from ampwise.compat.scaler import found_inf_in, scale_of
from ampwise.interpose.internal import internal
from ampwise.interpose.scaler_calls import around_scalers
from ampwise.interpose.seam import Undo
from ampwise.observe.events import EventBus, StepOutcome, StepStarted

_NUM_LOSSES: Final = 16
"""Losses that one step may scale before their backward passes."""


class _Thread(threading.local):
    """What this thread's scaler is in the middle of."""

    scaler: Any = None
    """The scaler whose ``step`` is going on."""
    is_told: bool = False
    """Its optimizer has stepped."""
    outcome: StepOutcome | None = None
    """Of a scaler that an optimizer's own step called: Accelerate's."""
    is_in_step: bool = False


class OwnScaler:
    """What the loop's own gradient scalers do, between ``start`` and its undo."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._thread = _Thread()
        self._losses: deque[tuple[weakref.ref[Tensor], Tensor]] = deque(maxlen=_NUM_LOSSES)

    def start(self) -> Undo:
        """Follow every scaler from now on."""
        return around_scalers({"scale": self._around_scale, "step": self._around_step})

    @property
    def is_in_step(self) -> bool:
        """Whether an optimizer's outermost step goes on in this thread."""
        return self._thread.is_in_step

    def unscaled(self, roots: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The losses that ``roots`` were before a scaler multiplied them."""
        if not self._losses:
            return roots
        return tuple(self._loss_of(root) for root in roots)

    def begin_step(self) -> None:
        """An optimizer's outermost step is about to run."""
        self._thread.is_in_step, self._thread.outcome = True, None

    def end_step(self) -> None:
        """It has ended, or raised."""
        self._thread.is_in_step = False

    def judged(self, outcome: StepOutcome) -> StepOutcome:
        """``outcome`` of a step that has just ended, with what a scaler knows of it."""
        thread = self._thread
        if thread.outcome is not None:
            return replace(thread.outcome, optimizer=outcome.optimizer)
        if thread.scaler is None:
            return outcome
        thread.is_told = True
        found: Any = getattr(outcome.optimizer, "found_inf", None)  # a fused optimizer skips by itself
        with internal():
            stepped = found == 0 if isinstance(found, Tensor) else outcome.stepped
            return replace(outcome, stepped=stepped, scale=scale_of(thread.scaler))

    def _loss_of(self, root: Tensor) -> Tensor:
        return next((loss for scaled, loss in self._losses if scaled() is root), root)

    def _around_scale(self, proceed: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        scaled = proceed(scaler, *args, **kwargs)
        loss = args[0] if args else kwargs.get("outputs")
        if isinstance(scaled, Tensor) and isinstance(loss, Tensor) and scaled is not loss:
            with internal():
                self._losses.append((weakref.ref(scaled), loss.detach()))  # no graph is kept
        return scaled

    def _around_step(self, proceed: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        thread = self._thread
        if not is_enabled(scaler) or thread.scaler is not None:
            return proceed(scaler, optimizer, *args, **kwargs)
        thread.scaler, thread.is_told = scaler, False
        try:
            result = proceed(scaler, optimizer, *args, **kwargs)
        finally:
            thread.scaler = None
        with internal():
            scale, found = scale_of(scaler), found_inf_in(scaler, optimizer)
            stepped = True if found is None else found == 0
        if thread.is_in_step:
            thread.outcome = StepOutcome(optimizer=optimizer, stepped=stepped, scale=scale)
        elif not thread.is_told:
            self._bus.publish(StepStarted(optimizer=optimizer))
            self._bus.publish(StepOutcome(optimizer=optimizer, stepped=False, scale=scale))
        return result

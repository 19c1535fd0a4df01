"""Finds a plain training loop by what it calls, and publishes its events."""

import threading
from collections.abc import Callable
from typing import Any, Self

from ampwise.compat.autograd import is_inside_backward
from ampwise.interpose.backward import BACKWARD, roots_of
from ampwise.interpose.internal import is_hidden
from ampwise.interpose.module_call import MODULE_CALL
from ampwise.interpose.optimizer_step import around_steps, on_captured_steps, on_optimizer
from ampwise.interpose.seam import Undo, intercept, undo_all
from ampwise.observe.events import (
    BackwardEnded,
    BackwardStarted,
    EventBus,
    ForwardEnded,
    ForwardStarted,
    StepOutcome,
    StepStarted,
)
from ampwise.observe.scaler import OwnScaler

Judge = Callable[[Any], StepOutcome]
"""Says how the step of an optimizer (None: the script's own hands) that has just ended went."""


class _Captured(threading.local):
    """This thread's optimizer whose step, which the row does not see, goes on."""

    optimizer: Any = None


class LoopWatcher:
    """Publishes the events of whatever training loop runs while it is entered.

    A step is an optimizer's outermost ``step()``, or one that the script's own gradient scaler skips; until the first
    optimizer is built, every top-level backward pass is one, for the script then updates its parameters by hand.
    Losses are those before a scaler multiplied them.

    Args:
        bus: Where the events go.
        judge: Says how a step went; by default it stepped.
        has_optimizer: The loop's optimizer exists already.
    """

    def __init__(
        self,
        bus: EventBus,
        *,
        judge: Judge = lambda optimizer: StepOutcome(optimizer=optimizer),
        has_optimizer: bool = False,
    ) -> None:
        self._bus = bus
        self._judge = judge
        self._has_optimizer = has_optimizer
        self._scaler = OwnScaler(bus)
        self._captured = _Captured()
        self._undos: list[Undo] = []

    def __enter__(self) -> Self:
        self._undos = [
            self._scaler.start(),
            on_optimizer(self._on_optimizer),
            around_steps(self._around_step),
            on_captured_steps(self._before_captured, self._after_captured),
            intercept(BACKWARD, self._around_backward),
            # calls of modules are many: they are looked at only if somebody asks
            self._bus.supply((ForwardStarted, ForwardEnded), lambda: intercept(MODULE_CALL, self._around_call)),
        ]
        return self

    def __exit__(self, *exc: object) -> None:
        undo_all(self._undos)

    def _on_optimizer(self, _: Any) -> None:
        self._has_optimizer = True

    def _around_call(self, proceed: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        if is_inside_backward():  # the recomputation of a checkpoint
            return proceed(module, *args, **kwargs)
        self._bus.publish(ForwardStarted(module=module, args=args, kwargs=kwargs))
        output = proceed(module, *args, **kwargs)
        self._bus.publish(ForwardEnded(module=module, output=output))
        return output

    def _around_backward(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if is_inside_backward():
            proceed(*args, **kwargs)
            return
        bus = self._bus
        if bus.wants(BackwardStarted):
            bus.publish(BackwardStarted(roots=self._scaler.unscaled(roots_of(args, kwargs))))
        proceed(*args, **kwargs)
        if bus.wants(BackwardEnded):
            bus.publish(BackwardEnded(roots=self._scaler.unscaled(roots_of(args, kwargs))))
        if not self._has_optimizer:
            self._bus.publish(StepStarted(optimizer=None))
            self._bus.publish(self._judge(None))

    def _around_step(self, proceed: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._begin_step(optimizer)
        try:
            result = proceed(optimizer, *args, **kwargs)
        finally:
            self._scaler.end_step()
        self._bus.publish(self._scaler.judged(self._judge(optimizer)))
        return result

    def _before_captured(self, optimizer: Any) -> None:
        # where the same one's is said to go on, it raised
        is_seen = self._scaler.is_in_step and self._captured.optimizer is not optimizer
        if not is_seen and not is_hidden():
            self._captured.optimizer = optimizer
            self._begin_step(optimizer)

    def _after_captured(self, optimizer: Any) -> None:
        if self._captured.optimizer is optimizer:
            self._captured.optimizer = None
            self._scaler.end_step()
            self._bus.publish(self._scaler.judged(self._judge(optimizer)))

    def _begin_step(self, optimizer: Any) -> None:
        self._has_optimizer = True
        if self._bus.wants(StepStarted):
            self._bus.publish(StepStarted(optimizer=optimizer, is_all=True))
        self._scaler.begin_step()

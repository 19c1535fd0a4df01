"""Watches how a script uses mixed precision: what it runs under autocast, and what it does with its loss scaler."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self

import torch

from ampwise.compat.autocast import is_enabled
from ampwise.compat.autograd import is_inside_backward
from ampwise.compat.scaler import scale_of
from ampwise.interpose.backward import BACKWARD, roots_of
from ampwise.interpose.clipping import on_clipping
from ampwise.interpose.internal import internal, is_hidden
from ampwise.interpose.optimizer_step import around_steps
from ampwise.interpose.own_amp import ENTER, SCALER
from ampwise.interpose.saving import PATH_FUNCTIONS
from ampwise.interpose.scaler_calls import around_scalers
from ampwise.interpose.seam import intercept
from ampwise.observe.checkpoints import holds_optimizer_state, holds_scaler_state
from ampwise.observe.dtypes import dtype_name
from ampwise.observe.events import EventBus, PrecisionTaken, StepOutcome
from ampwise.observe.frames import Line, user_line
from ampwise.records.site import Phase, Site
from ampwise.records.usage import Misuse, MisusePlace, SavedState, ScalerMade, UsageRecord

_SAVE = next(one.row for one in PATH_FUNCTIONS if (one.row.owner, one.row.attribute) == ("torch", "save"))
_PHASES = {Misuse.BACKWARD_UNDER_AUTOCAST: Phase.BACKWARD}


@dataclass(slots=True)
class _Count:
    """How often one line did one thing."""

    count: int = 0
    scale: torch.Tensor | None = None
    num_in_loop: int = 0


@dataclass(slots=True)
class _Iteration:
    """What the scaler did since its last update."""

    has_scaled: bool = False
    unscaled: set[int] = field(default_factory=set[int])
    """Parameters, by identity, whose gradients hold no scale any more."""
    clipped: dict[int, tuple[Line | None, str]] = field(default_factory=dict[int, tuple[Line | None, str]])
    """Parameters that were clipped with the scale in their gradients: where, and by which function."""


class UsageWatch:
    """Records what a loop does with autocast and with its own scalers, while entered.

    What ampwise injects or runs for itself is not the script's doing, and is not seen.

    Args:
        bus: Where the loop's events are published.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._undo = ExitStack()
        self._num_steps = self._num_backwards = self._num_scaled = self._num_scaler_steps = 0
        self._is_in_scaler_step = False
        self._low: str | None = None
        self._iteration = _Iteration()
        self._misuses: dict[tuple[Misuse, Line | None, str], _Count] = {}
        self._scalers: dict[tuple[Line | None, str], _Count] = {}
        self._saves: dict[tuple[Line | None, bool], int] = {}

    def __enter__(self) -> Self:
        for undo in (
            self._bus.subscribe(StepOutcome, self._on_step),
            self._bus.subscribe(PrecisionTaken, self._on_taken),
            intercept(ENTER, self._around_enter),
            intercept(SCALER, self._around_making),
            intercept(BACKWARD, self._around_backward),
            intercept(_SAVE, self._around_save),
            around_steps(self._around_optimizer),
            around_scalers(
                {
                    "scale": self._around_scale,
                    "unscale_": self._around_unscale,
                    "step": self._around_scaler_step,
                    "update": self._around_update,
                }
            ),
            on_clipping(self._on_clipping),
        ):
            self._undo.callback(undo)
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """None: a few calls a step are looked at."""
        return frozenset()

    def record(self) -> UsageRecord:
        """What was seen so far; reads scales from their device."""
        with internal():
            misuses = [self._place(*key, found) for key, found in self._misuses.items() if self._is_sure(key[0])]
        return UsageRecord(
            num_steps=self._num_steps,
            autocast=self._low,
            num_backwards=self._num_backwards,
            misuses=tuple(misuses),
            scalers=tuple(
                ScalerMade(site=_site(line), kind=kind, count=made.count, num_in_loop=made.num_in_loop)
                for (line, kind), made in self._scalers.items()
            ),
            num_scaled=self._num_scaled,
            saves=tuple(
                SavedState(site=_site(line), count=count, has_scaler=has_scaler)
                for (line, has_scaler), count in self._saves.items()
            ),
        )

    def _is_sure(self, kind: Misuse) -> bool:
        """An optimizer beside a scaler's own may have had a loss of its own, that nobody scaled."""
        return kind is not Misuse.STEPPED_SCALED or not self._num_scaler_steps

    def _place(self, kind: Misuse, line: Line | None, what: str, found: _Count) -> MisusePlace:
        scale = None if found.scale is None else float(found.scale)
        return MisusePlace(
            kind=kind, site=_site(line, _PHASES.get(kind, Phase.OPTIMIZER)), count=found.count, what=what, scale=scale
        )

    def _note(self, kind: Misuse, *, line: Line | None, what: str, scale: torch.Tensor | None = None) -> None:
        found = self._misuses.setdefault((kind, line, what), _Count(scale=scale))
        found.count += 1

    def _on_step(self, _: StepOutcome) -> None:
        self._num_steps += 1

    def _on_taken(self, taken: PrecisionTaken) -> None:
        self._low = taken.low or self._low

    def _around_enter(self, proceed: Callable[..., Any], region: torch.autocast, *args: Any, **kwargs: Any) -> Any:
        if is_enabled(region) and not is_hidden():
            self._low = dtype_name(region.fast_dtype)
        return proceed(region, *args, **kwargs)

    def _around_making(self, proceed: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> None:
        proceed(scaler, *args, **kwargs)
        if is_enabled(scaler):
            made = self._scalers.setdefault((user_line(2), type(scaler).__name__), _Count())
            made.count += 1
            made.num_in_loop += self._num_steps > 0

    def _around_backward(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if not is_inside_backward():
            self._num_backwards += 1
            if _is_under_autocast(roots_of(args, kwargs)):
                self._note(Misuse.BACKWARD_UNDER_AUTOCAST, line=user_line(2), what="backward")
        proceed(*args, **kwargs)

    def _around_optimizer(self, proceed: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = _parameters(optimizer)
        what = type(optimizer).__name__
        if _is_under_autocast(parameters[:1]):
            self._note(Misuse.STEP_UNDER_AUTOCAST, line=user_line(2), what=what)
        now = self._iteration
        if now.has_scaled and not self._is_in_scaler_step and not now.unscaled.intersection(map(id, parameters)):
            self._note(Misuse.STEPPED_SCALED, line=user_line(2), what=what)
        return proceed(optimizer, *args, **kwargs)

    def _around_scale(self, proceed: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if is_enabled(scaler):
            self._num_scaled += 1
            if not self._iteration.has_scaled:
                self._iteration = _Iteration(has_scaled=True)
            if self._low == "bf16":
                self._note(Misuse.SCALED_BF16, line=user_line(2), what=type(scaler).__name__)
        return proceed(scaler, *args, **kwargs)

    def _around_unscale(
        self, proceed: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._iteration.unscaled.update(map(id, _parameters(optimizer)))
        return proceed(scaler, optimizer, *args, **kwargs)

    def _around_scaler_step(
        self, proceed: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not is_enabled(scaler):
            return proceed(scaler, optimizer, *args, **kwargs)
        self._num_scaler_steps += 1
        ids = [id(parameter) for parameter in _parameters(optimizer)]
        clips = {place for one in ids if (place := self._iteration.clipped.pop(one, None)) is not None}
        with internal():
            scale = scale_of(scaler)
        for line, function in clips:
            self._note(Misuse.CLIPPED_SCALED, line=line, what=function, scale=scale)
        self._iteration.unscaled.update(ids)
        self._is_in_scaler_step = True
        try:
            return proceed(scaler, optimizer, *args, **kwargs)
        finally:
            self._is_in_scaler_step = False

    def _around_update(self, proceed: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        self._iteration = _Iteration()
        return proceed(scaler, *args, **kwargs)

    def _on_clipping(self, function: str, parameters: list[torch.Tensor]) -> None:
        if self._iteration.has_scaled:
            place = (user_line(2), function)
            scaled = [id(one) for one in parameters if id(one) not in self._iteration.unscaled]
            self._iteration.clipped.update(dict.fromkeys(scaled, place))

    def _around_save(self, proceed: Callable[..., Any], obj: Any, *args: Any, **kwargs: Any) -> Any:
        result = proceed(obj, *args, **kwargs)
        if holds_optimizer_state(obj):
            key = user_line(2), holds_scaler_state(obj)
            self._saves[key] = self._saves.get(key, 0) + 1
        return result


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_under_autocast(tensors: Iterable[torch.Tensor]) -> bool:
    return any(torch.is_autocast_enabled(tensor.device.type) for tensor in tensors)


def _site(line: Line | None, phase: Phase = Phase.OTHER) -> Site:
    if line is None:
        return Site(phase=phase)
    return Site(phase=phase, file=line.shown_file, line=line.line)

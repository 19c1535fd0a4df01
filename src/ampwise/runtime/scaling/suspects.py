"""Warns of gradients that overflow for ever, where the loop is the user's own: by which losses, in which parameters."""

import math
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ampwise.interpose.caller import users_stack_level
from ampwise.runtime.scaling.late_news import LateNews
from ampwise.runtime.scaling.misuse import name_parameters
from ampwise.runtime.scaling.overflow import LossScaleWarning, OverflowWatch

_NUM_LOSSES = 64


class Suspects:
    """The losses since the last step, the optimizers of the scaler, the models that name their parameters.

    Keeps nothing alive but the losses' own numbers.

    Args:
        min_scale: the scale never falls below it.
        max_scale: the scale never grows above it.
        warns: False if somebody else watches.
    """

    def __init__(self, *, min_scale: float, max_scale: float, warns: bool = True) -> None:
        self._warns = warns
        floor = min_scale if min_scale < max_scale else -math.inf
        self._watch, self._has_warned = OverflowWatch(floor, self.named_parameters), False
        self._news = LateNews()
        self.losses: deque[Tensor] = deque(maxlen=_NUM_LOSSES)
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._models: list[weakref.ref[Module]] = []

    def note_loss(self, outputs: Any) -> None:
        """A tensor that is being scaled, before it is; only a scalar is a loss."""
        if isinstance(outputs, Tensor) and outputs.numel() == 1:
            self.losses.append(outputs.detach())

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """One whose parameters are trained."""
        if not any(one() is optimizer for one in self._optimizers):
            self._optimizers = [one for one in self._optimizers if one() is not None] + [weakref.ref(optimizer)]

    def note_models(self, models: Iterable[Module]) -> None:
        """Models that name parameters."""
        self._models += [weakref.ref(model) for model in models]

    def judge(self, *, skipped: bool, scale: float) -> None:
        """Take in a step, made with ``scale``; warn, once in a row of skipped steps, where there is no hope."""
        if not self._warns:
            return
        fault = self._watch.fault(skipped=skipped, scale=scale, losses=self.losses)
        if fault is not None and not self._has_warned:
            warn(fault)
        self._has_warned = skipped and (self._has_warned or fault is not None)

    def hear(self, found_inf: Tensor) -> None:
        """Take in a step on a device that is never waited for; warn once it has told of endless skips."""
        if not self._warns:
            return
        late = self._news.take(found_inf)
        fault = self._watch.late_fault(late, losses=self.losses)
        if fault is not None and not self._has_warned:
            warn(fault)
        if late is not None:
            self._has_warned = fault is not None

    def named_parameters(self) -> Mapping[str, Tensor]:
        """The optimizers' parameters, by their names in a model where one is known."""
        models = [model for one in self._models if (model := one()) is not None]
        optimizers = [optimizer for one in self._optimizers if (optimizer := one()) is not None]
        return name_parameters(models, optimizers)


def warn(what: str) -> None:
    """Warn of the loss scale, at the line of the user's that led here."""
    warnings.warn(what, LossScaleWarning, stacklevel=users_stack_level())

"""A precision, a loss scale and a plan in the hands of another library's loop, which calls the parts itself."""

from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ampwise.observe.modules import unwrapped
from ampwise.plan.find import AnyPlan, find_plan
from ampwise.plan.presets import get_precision
from ampwise.runtime.casts.autocast import autocast
from ampwise.runtime.casts.casting import device_type_of_model
from ampwise.runtime.casts.region_rules import forget, is_possible
from ampwise.runtime.hardware.device import Choice, choose_precision
from ampwise.runtime.scaling.buffers import BufferGuard
from ampwise.runtime.scaling.loss_scale import LossScale
from ampwise.runtime.scaling.scaler import GradScaler
from ampwise.runtime.step.planned import apply_to_all, scale_of_plan
from ampwise.runtime.step.regime import Regime


class LoopPrecision:
    """What a foreign loop calls around its forward pass, backward pass and optimizers.

    Law: the parameters are those of ``TrainStep``'s loop in the same precision, bit for bit; after ``close`` the models
    are as they were before ``take``.

    Args:
        precision: as ``TrainStep`` takes it.
        plan: in the place of a precision: a plan, or what names one.
        loss_scale: as ``TrainStep`` takes it, for one loss.

    Raises:
        UsageError: there is no such precision, plan or loss scale.
    """

    def __init__(
        self,
        precision: str = "auto",
        *,
        plan: AnyPlan | None = None,
        loss_scale: LossScale | str | float | None = None,
    ) -> None:
        if precision != "auto":
            get_precision(precision)
        self.plan = None if plan is None else find_plan(plan)
        self._asked, self._given_scale = precision, loss_scale
        self.choice: Choice | None = None
        self._regime: Regime | None = None
        self.scaler = GradScaler("cpu", enabled=False)
        self._state: dict[str, Any] = {}
        self._buffers = BufferGuard(())
        self._models: list[Module] = []
        self._regions: list[AbstractContextManager[object]] = []
        self._undo = ExitStack()

    @property
    def precision(self) -> str | None:
        """The precision taken; None before it is decided."""
        return None if self._regime is None else self._regime.precision

    def take(self, model: Module, optimizers: tuple[Optimizer, ...] = (), *, calls_forward: bool = True) -> None:
        """Train this model too; one that is taken already is passed over.

        Args:
            model: it is trained.
            optimizers: which step its parameters.
            calls_forward: the loop calls the model itself, so a plan may hold in its ``forward``; else, as Lightning
                calls ``training_step``, it holds in the context that ``forward`` of this object gives.

        Raises:
            UsageError: the plan does not fit the model.
            CannotRunError: as ``apply_plan``.
        """
        if any(model is one for one in self._models):
            return
        device_type = device_type_of_model(model)
        if self.plan and not calls_forward and is_possible(self.plan, device_type):
            region = autocast(device_type, plan=self.plan, model=model)
            with region:  # what does not fit is told now
                pass
            self._regions.append(region)
            self._undo.callback(forget, unwrapped(model))
        elif self.plan:
            self._undo.callback(apply_to_all((model,), self.plan, optimizers=optimizers))
        self._models.append(model)
        if self.scaler.is_enabled():
            self._buffers.watch([model])

    def decide(self) -> Regime:
        """The precision, decided once, by the device that the first model is on by now.

        Raises:
            CannotRunError: the device cannot compute so.
            UsageError: no loss scale is meant by what was given.
        """
        if self._regime is None:
            parameter = next((one for model in self._models for one in model.parameters()), None)
            device = torch.device("cpu") if parameter is None else parameter.device
            self.choice = choose_precision("fp32" if self.plan else self._asked, device=device)
            regime = Regime(precision=self.choice.precision, device_type=device.type)
            given = scale_of_plan(self.plan) if self._given_scale is None else self._given_scale
            scale, _ = regime.choose_loss_scale(given)
            self.scaler = GradScaler.from_loss_scale(scale, device=device.type)
            if self.scaler.is_enabled():
                self._buffers.watch(self._models)
            self.load_state_dict(self._state)
            self._regime = regime
        return self._regime

    def forward(self, *, trains: bool) -> AbstractContextManager[object]:
        """The context of a forward pass and its loss; ``trains``: a skipped step goes back to before it."""
        regime = self.decide()
        if trains and torch.is_grad_enabled() and not self._buffers.is_saved:
            self._buffers.save()
        return self._in_regions() if self._regions else regime.forward()

    @contextmanager
    def _in_regions(self) -> Generator[None]:
        with ExitStack() as stack:
            for region in self._regions:
                stack.enter_context(region)
            yield

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to take gradients of."""
        return self.scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Make the gradients true, before somebody looks at them."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer, **options: Any) -> Any:
        """Step unless a gradient is not finite; returns what the optimizer does."""
        if not self.scaler.is_enabled():
            return self.step_freely(optimizer, **options)
        returned = self.scaler.step(optimizer, **options)
        self.scaler.update()
        result = self.scaler.last_step
        # Another optimizer may follow before the loop says that it goes forward again, and overflow.
        self._buffers.restore(None if result is None else result.found_inf, keep=True)
        return returned

    def step_freely(self, optimizer: Optimizer, **options: Any) -> Any:
        """Step whatever the gradients are; returns what the optimizer does."""
        self._buffers.drop()
        return optimizer.step(**options)

    def state_dict(self) -> dict[str, Any]:
        """The loss scale's state; empty without one."""
        return self.scaler.state_dict() if self.scaler.is_enabled() else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a loss scale, torch's or ours; kept for later before one is decided."""
        self._state = state
        if self.scaler.is_enabled() and state:
            self.scaler.load_state_dict(state)

    def close(self) -> None:
        """Take the plan back off the models, and forget them; the loss scale stays for who saves it or trains on."""
        self._state = self.state_dict()
        self._regions.clear()
        self._undo.close()
        self._buffers.unwatch(self._models)
        self._models.clear()
        self._regime = None

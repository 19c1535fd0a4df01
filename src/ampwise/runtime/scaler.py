"""``torch.amp.GradScaler`` without its faults."""

import math
import numbers
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ampwise._base.errors import UsageError
from ampwise.compat.scaler import (
    OptState,
    Replicator,
    check_finite_,
    found_inf_of,
    fresh_optimizer_states,
    unscale_and_check_,
)
from ampwise.runtime import host
from ampwise.runtime.buffers import BufferGuard, SaveBeforeForward
from ampwise.runtime.closure import Overflowed, Snapshot, split_closure
from ampwise.runtime.gradients import grouped_gradients
from ampwise.runtime.history import History, HistoryRing
from ampwise.runtime.loss_scale import (
    LARGEST_SCALE,
    SMALLEST_USEFUL_SCALE,
    TORCH_INIT_SCALE,
    DynamicLossScale,
    LossScale,
    NoLossScale,
    StaticLossScale,
)
from ampwise.runtime.result import StepResult
from ampwise.runtime.scale_update import ScaleRules, ScaleState, advance_, back_off_once_


class LossScaleWarning(UserWarning):
    """The loss scale is where it should not be; training goes on."""


# It derives from torch's class, and overrides some of its methods, against this project's habit of composing:
# Lightning, Accelerate and users' code ask isinstance(x, torch.amp.GradScaler), unpickle it and read its private
# attributes, so a drop-in that is not one is none. What is overridden calls the original or replaces it whole.
class GradScaler(torch.amp.GradScaler):
    """Scales the loss so that fp16 gradients do not vanish; a drop-in for ``torch.amp.GradScaler``.

    Same scales and same parameters bit for bit, and beyond that: the scale stays between ``min_scale`` and
    ``max_scale`` (torch's falls to 0 without a word); gradients are tested after unscaling, so none becomes infinite on
    the way to the optimizer; complex and bf16 gradients, closures and ``update(1024)`` work; ``update`` after each
    of several optimizers counts one step; ``last_step`` says whether the optimizer stepped.

    Args:
        device: as torch's, like the next five.
        init_scale: the first scale.
        growth_factor: what the scale grows by after ``growth_interval`` finite steps in a row.
        backoff_factor: what the scale is multiplied by after an overflow.
        growth_interval: see ``growth_factor``.
        enabled: if False, every method passes through.
        min_scale: the scale never falls below it.
        max_scale: the scale never grows above it.
        hysteresis: how many overflows in a row it takes to back off.

    Attributes:
        last_step: what the last ``step`` did.
    """

    def __init__(  # noqa: PLR0913 - torch's own signature
        self,
        device: str = "cuda",
        init_scale: float = TORCH_INIT_SCALE,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,  # noqa: FBT001, FBT002 - torch's own signature
        *,
        min_scale: float = SMALLEST_USEFUL_SCALE,
        max_scale: float = LARGEST_SCALE,
        hysteresis: int = 1,
    ) -> None:
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        if not 0.0 < min_scale <= max_scale < math.inf:
            raise UsageError(
                f"min_scale is {min_scale} and max_scale {max_scale}; give 0 < min_scale <= max_scale < inf"
            )
        if hysteresis < 1:
            raise UsageError(f"hysteresis is {hysteresis}; give 1 (back off at once, torch's way) or more")
        self._min_scale, self._max_scale, self._hysteresis = min_scale, max_scale, hysteresis
        self.last_step: StepResult | None = None
        self._lower_bound = float(init_scale)
        self._init_overflows = 0
        self._num_scale_calls = 0
        self._host_found: bool | None = None
        self._guard = BufferGuard(())
        self._ring = HistoryRing()
        self._grad_norm: Tensor | None = None
        self._warns, self._warned = True, False
        self._forget_iteration()

    @classmethod
    def from_loss_scale(cls, loss_scale: LossScale, *, device: str, warns: bool = True) -> "GradScaler":
        """A scaler that starts at ``loss_scale`` and moves by its rules; disabled for ``NoLossScale``.

        Args:
            loss_scale: where to start, and the rules.
            device: as torch's.
            warns: False if the caller watches for a scale at its minimum itself.
        """
        match loss_scale:
            case NoLossScale():
                scaler = cls(device, enabled=False)
            case StaticLossScale(scale=scale):
                scaler = cls(device, init_scale=scale, min_scale=scale, max_scale=scale)
            case DynamicLossScale() as state:
                scaler = cls(
                    device,
                    state.scale,
                    state.growth_factor,
                    state.backoff_factor,
                    state.growth_interval,
                    min_scale=state.min_scale,
                    max_scale=state.max_scale,
                    hysteresis=state.hysteresis,
                )
                scaler._init_growth_tracker, scaler._init_overflows = state.growth_tracker, state.num_overflows
        scaler._warns = warns
        return scaler

    def scale(self, outputs: Any) -> Any:
        """Multiply a tensor, or the tensors of an iterable, by the scale."""
        self._num_scale_calls += 1
        self._made_with = None
        if not self._guard.is_saved:
            self._guard.drop()
        return super().scale(outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale they were made with, and test the results."""
        with self._scale_of_gradients(optimizer):
            super().unscale_(optimizer)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale the gradients unless that is done, then step the optimizer if they are finite.

        A closure is called with its gradients unscaled after every call, so LBFGS works; it may scale and
        backpropagate as the loop around it would, and may call ``unscale_`` to clip. If a gradient is not finite at
        any call, parameters and optimizer state are put back.

        Returns:
            What the optimizer's ``step`` returns; None, or the closure's last loss, if the step was skipped.
        """
        if not self._enabled:
            self.last_step = StepResult()
            return optimizer.step(*args, **kwargs)
        closure, args, kwargs = split_closure(args, kwargs)
        self._host_found = None
        with self._scale_of_gradients(optimizer):
            if closure is None:
                returned = self._torchs_step(optimizer, args, kwargs)
            else:
                returned = self._step_with_closure(optimizer, closure, args, kwargs)
            self.last_step = self._result(optimizer)
        return returned

    def note_finite_step(self, optimizer: Optimizer) -> None:
        """Take in that somebody else unscaled this optimizer's gradients, found them finite and stepped it."""
        if not self._enabled:
            self.last_step = StepResult()
            return
        scale, _ = self._check_scale_growth_tracker("note_finite_step")
        state = self._per_optimizer_states[id(optimizer)]
        state["found_inf_per_device"] = {scale.device: torch.zeros((), device=scale.device)}
        state["stage"] = OptState.STEPPED
        self.last_step = StepResult(found_inf=False, scale_tensor=scale.clone())

    @contextmanager
    def recording(self) -> Generator[None]:
        """Within it a step is recorded into a graph: what the host knows now decides nothing in it."""
        self._lower_bound, self._ring.is_paused = 0.0, True
        try:
            yield
        finally:
            self._ring.is_paused = False

    def note_replayed_step(self, result: StepResult) -> None:
        """Take in a step that a graph took: unscaled, stepped and moved the scale."""
        self.last_step, self._lower_bound = result, 0.0
        if result.scale_tensor is not None and isinstance(result.found_inf, Tensor):
            self._ring.add(scale=result.scale_tensor, found_inf=result.found_inf, grad_norm=result.grad_norm_tensor)
        elif result.grad_norm_tensor is not None:
            self._grad_norm = result.grad_norm_tensor
            self._remember_norm()

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Move the scale after the step, or set it to ``new_scale``.

        Called after each of several optimizers of one step it counts that step once.
        """
        if not self._enabled:
            self._remember_norm()
        elif new_scale is None:
            self._advance()
        else:
            states = [one for one in self._per_optimizer_states.values() if one["found_inf_per_device"]]
            found = _sum_all(states, self._scale) if states and self._scale is not None else None
            super().update(_checked(new_scale))
            self._guard.restore(found)
            self._lower_bound = 0.0 if isinstance(new_scale, Tensor) else float(new_scale)
            self._forget_iteration()

    def protect(self, *modules: Any) -> Callable[[], None]:
        """Put the buffers of ``modules`` (BatchNorm's running statistics) back whenever ``update`` skips a step.

        Without it a skipped step leaves the parameters finite and the statistics infinite, so that evaluation gives
        NaN. Give the modules that the loop calls: a compiled or wrapped model, not the one inside it.

        Returns:
            A function that ends the protection.

        Raises:
            UsageError: something else than a module is given.
        """
        strangers = [type(one).__name__ for one in modules if not isinstance(one, Module)]
        if strangers or not modules:
            raise UsageError(f"protect() was given {', '.join(strangers) or 'nothing'}; give the models trained")
        if not self._enabled:
            return lambda: None
        self._guard.watch(modules)
        hook: Any = SaveBeforeForward(self._guard)
        handles = [module.register_forward_pre_hook(hook) for module in modules]

        def end() -> None:
            for handle in handles:
                handle.remove()
            self._guard.unwatch(modules)

        return end

    def note_grad_norm(self, norm: Tensor) -> None:
        """Let the history's next row hold ``norm``, such as ``clip_grad_norm_`` returns it; nothing is waited for."""
        self._grad_norm = norm

    def history(self) -> History:
        """The scale, the gradient norm and whether it was skipped, of each of the last 1000 steps.

        The rows wait on the device until this is called; only this call waits for it.
        """
        return self._ring.read()

    def plot(self, *, width: int = 72, height: int = 8) -> str:
        """The history's scale as a plot in plain text, for a terminal or a log."""
        return self.history().plot(width=width, height=height)

    def snapshot_scale(self) -> Tensor | None:
        """A copy of the scale on its device; None if there is none, or none yet."""
        scale = self._get_scale_async() if self._enabled else None
        return None if scale is None else scale.clone()

    def state_dict(self) -> dict[str, Any]:
        """Torch's five entries; with hysteresis also ``num_overflows``."""
        state = super().state_dict()
        if self._enabled and self._hysteresis > 1:
            state["num_overflows"] = self._init_overflows if self._num_overflows is None else int(self._num_overflows)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of one of ours or of torch's."""
        super().load_state_dict(state_dict)
        if not self._enabled:
            return
        self._init_overflows = int(state_dict.get("num_overflows", 0))
        self._forget_iteration()
        self._lower_bound = float(self._init_scale)
        if not self._init_scale >= self._min_scale:
            self._warn(f"the loaded loss scale {self._init_scale} is below the minimum; it is set to", stacklevel=3)
            self._init_scale = self._lower_bound = self._min_scale
            if self._scale is not None:
                self._scale.fill_(self._min_scale)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._enabled and self._num_overflows is not None:
            state["_init_overflows"] = int(self._num_overflows)
        fresh = {"_guard": BufferGuard(()), "_ring": HistoryRing(), "_grad_norm": None, "last_step": None}
        return {**state, **fresh, "_num_overflows": None, "_made_with": None, "_counted": set()}

    def _forget_iteration(self) -> None:
        """Start anew: no step is half counted."""
        self._num_overflows: Tensor | None = None
        self._made_with: Tensor | None = None
        self._counted: set[int] = set()

    # ------------------------------------------------------------------ unscaling

    def _unscale_grads_(
        self,
        optimizer: Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,  # noqa: FBT001 - torch's own signature
    ) -> dict[torch.device, Tensor]:
        factors, findings = Replicator(inv_scale), Replicator(found_inf)
        may_overflow = self._may_overflow(inv_scale)
        with torch.no_grad():
            for device, grads in _gradients(optimizer, allow_fp16=allow_fp16):
                unscale_and_check_(grads, factors.get(device), findings.get(device), may_overflow=may_overflow)
        return found_inf_of(findings)

    def _check_inf_per_device(self, optimizer: Optimizer) -> dict[Any, Any]:
        """Test what a fused optimizer's own unscaling will give."""
        scale, _ = self._check_scale_growth_tracker("_check_inf_per_device")
        if not self._may_overflow(scale.reciprocal()):
            return super()._check_inf_per_device(optimizer)
        scales, findings = Replicator(scale), Replicator(torch.zeros((), dtype=torch.float32, device=scale.device))
        with torch.no_grad():
            for device, grads in _gradients(optimizer, allow_fp16=True):
                check_finite_(grads, findings.get(device), scale=scales.get(device))
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found_inf_of(findings)
        return found

    def _may_overflow(self, inv_scale: Tensor) -> bool:
        """Whether unscaling may enlarge gradients. On an accelerator what is known without asking it decides."""
        return bool(inv_scale > 1) if host.reads_freely(inv_scale) else self._lower_bound < 1.0

    @contextmanager
    def _scale_of_gradients(self, optimizer: Optimizer) -> Generator[None]:
        """Within it ``_scale`` is what the optimizer's gradients were made with.

        That differs from the current scale for the second optimizer of a step when ``update`` was called after the
        first: torch unscales such gradients with the wrong factor.
        """
        if not self._enabled or self._made_with is None or id(optimizer) in self._counted:
            yield
            return
        current, self._scale = self._scale, self._made_with
        try:
            yield
        finally:
            self._scale = current

    # ------------------------------------------------------------------ stepping

    def _torchs_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        try:
            return super().step(optimizer, *args, **kwargs)
        except AssertionError as error:
            if "No inf checks were recorded for this optimizer" not in str(error):
                raise
            self._per_optimizer_states.pop(id(optimizer))
            raise AssertionError(
                f"{error} None of its parameters has a gradient: the loss does not depend on them, backward() was not "
                "called, or the optimizer was made before the model was replaced. Do not step it in this iteration."
            ) from error

    def _maybe_opt_step(self, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        scale, _ = self._check_scale_growth_tracker("step")
        found, value = torch.stack((_sum(optimizer_state, scale), scale)).tolist()
        self._host_found = bool(found)
        if self._made_with is None and not host.reads_freely(scale):
            self._learn(value, overflowed=self._host_found)
        return None if found else optimizer.step(*args, **kwargs)

    def _step_with_closure(self, optimizer: Optimizer, closure: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        snapshot: Snapshot | None = None

        def evaluate() -> Any:
            nonlocal snapshot
            loss = self._evaluate(optimizer, closure, state)
            snapshot = snapshot or Snapshot.take(optimizer)
            return loss

        try:
            returned = optimizer.step(evaluate, *args, **kwargs)
        except Overflowed as overflow:
            if snapshot:
                snapshot.restore(optimizer)
            returned = overflow.loss
        state["stage"] = OptState.STEPPED
        return returned

    def _evaluate(self, optimizer: Optimizer, closure: Callable[[], Any], state: dict[str, Any]) -> Any:
        """Call the closure; its gradients, if it made any, are unscaled and finite after it.

        Raises:
            Overflowed: a gradient is not finite.
        """
        stage, state["stage"] = state["stage"], OptState.READY
        num_scale_calls = self._num_scale_calls
        loss = closure()
        made_gradients = self._num_scale_calls != num_scale_calls
        if state["stage"] is OptState.READY and not made_gradients:
            state["stage"] = stage
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        if any(bool(found) for found in state["found_inf_per_device"].values()):
            raise Overflowed(loss)
        return loss

    def _result(self, optimizer: Optimizer) -> StepResult:
        scale, _ = self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        found = self._host_found
        if found is None and state["found_inf_per_device"]:
            found = _sum(state, scale)
        return StepResult(found_inf=found, scale_tensor=scale.clone())

    # ------------------------------------------------------------------ updating

    def _advance(self) -> None:
        scale, growth_tracker = self._check_scale_growth_tracker("update")
        states = {key: state for key, state in self._per_optimizer_states.items() if state["found_inf_per_device"]}
        if not states:
            raise AssertionError("No inf checks were recorded prior to update.")
        found = _sum_all(states.values(), scale)
        before = scale.clone()
        state = ScaleState(scale=scale, growth_tracker=growth_tracker, num_overflows=self._overflows(scale))
        if self._counted.isdisjoint(states) and self._counted:
            made_with = before if self._made_with is None else self._made_with
            back_off_once_(state, found, made_with, self._rules())
            self._ring.amend(found)
            self._counted |= set(states)
            self._made_with = made_with
        else:
            advance_(state, found, self._rules())
            self._ring.add(scale=before, found_inf=found, grad_norm=self._grad_norm)
            self._grad_norm = None
            self._counted = set(states)
            self._made_with = before
        self._lower_bound = max(self._lower_bound * self._backoff_factor, self._min_scale)
        if host.reads_freely(scale):
            self._learn(scale.item(), overflowed=bool(found))
        self._guard.restore(found, keep=True)
        self._per_optimizer_states = fresh_optimizer_states()

    def _remember_norm(self) -> None:
        """Without a scale the history holds the steps whose norm is known."""
        norm, self._grad_norm = self._grad_norm, None
        if norm is not None:
            one = torch.ones((), device=norm.device)
            self._ring.add(scale=one, found_inf=torch.zeros_like(one), grad_norm=norm)

    def _overflows(self, scale: Tensor) -> Tensor:
        if self._num_overflows is None:
            self._num_overflows = torch.full((), self._init_overflows, dtype=torch.int32, device=scale.device)
        return self._num_overflows

    def _rules(self) -> ScaleRules:
        return ScaleRules(
            growth_factor=self._growth_factor,
            backoff_factor=self._backoff_factor,
            growth_interval=self._growth_interval,
            min_scale=self._min_scale,
            max_scale=self._max_scale,
            hysteresis=self._hysteresis,
        )

    def _learn(self, scale: float, *, overflowed: bool) -> None:
        """Note the scale, which the host knows now, and warn where it fell to its minimum."""
        self._lower_bound = scale
        at_minimum = scale <= self._min_scale < self._max_scale
        if self._warns and at_minimum and overflowed and not self._warned:
            self._warn("gradients overflow at every scale: the loss scale is at its minimum,", stacklevel=5)
        self._warned = at_minimum and (overflowed or self._warned)

    def _warn(self, what: str, *, stacklevel: int) -> None:
        advice = "If the loss is NaN too, the forward pass makes it: look there, lower the learning rate, or use bf16."
        warnings.warn(f"{what} {self._min_scale:g}. {advice}", LossScaleWarning, stacklevel=stacklevel)


def _gradients(optimizer: Optimizer, *, allow_fp16: bool) -> Iterator[tuple[torch.device, list[Tensor]]]:
    for device, by_dtype in grouped_gradients(optimizer, allow_fp16=allow_fp16).items():
        for grads in by_dtype.values():
            yield device, grads


def _sum(optimizer_state: dict[str, Any], scale: Tensor) -> Tensor:
    """How many devices found non-finite gradients, on the scale's device."""
    found: Iterable[Tensor] = optimizer_state["found_inf_per_device"].values()
    return torch.stack([one.to(scale.device, non_blocking=True).reshape(()) for one in found]).sum()


def _sum_all(optimizer_states: Iterable[dict[str, Any]], scale: Tensor) -> Tensor:
    """How many devices found non-finite gradients, in all optimizers."""
    return torch.stack([_sum(state, scale) for state in optimizer_states]).sum()


def _checked(new_scale: Any) -> float | Tensor:
    """A tensor as it is; any other real number as a float, which is all torch takes."""
    if isinstance(new_scale, Tensor):
        return new_scale
    if not isinstance(new_scale, numbers.Real) or not 0.0 < float(new_scale) < math.inf:
        raise UsageError(f"update({new_scale!r}): give a positive finite number or a 1-element tensor, such as 65536.0")
    return float(new_scale)

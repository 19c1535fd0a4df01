"""``torch.amp.GradScaler`` without its faults."""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise.compat.fused import start_momenta
from ampwise.compat.scaler import OptState, fresh_optimizer_states
from ampwise.records.scaling import History
from ampwise.records.scaling_signs import Sign, signs
from ampwise.runtime.gradients.found_inf import check_all, share_found, sum_all_found, sum_found, unscale_all_
from ampwise.runtime.gradients.gradient_watch import SAMPLE_INTERVAL, GradientWatch
from ampwise.runtime.hardware import host
from ampwise.runtime.ranks.accord import Accord
from ampwise.runtime.ranks.distributed import Ballot, Found, Group, Ranks
from ampwise.runtime.scaling.buffers import BufferGuard
from ampwise.runtime.scaling.closure import split_closure, step_with_closure
from ampwise.runtime.scaling.history import HistoryRing
from ampwise.runtime.scaling.loss_scale import (
    LARGEST_SCALE,
    SMALLEST_USEFUL_SCALE,
    TORCH_INIT_SCALE,
    LossScale,
    get_loss_scale,
)
from ampwise.runtime.scaling.misuse import NO_GRADIENT, tells_of_no_gradient
from ampwise.runtime.scaling.named_losses import NamedLosses
from ampwise.runtime.scaling.overflow import LossScaleWarning
from ampwise.runtime.scaling.protect import attach, check_models
from ampwise.runtime.scaling.result import StepResult
from ampwise.runtime.scaling.scale_memory import ScaleMemory
from ampwise.runtime.scaling.scale_update import Rules, ScaleRules, advance_, back_off_once_
from ampwise.runtime.scaling.scaler_options import ScalerOptions, checked_scale
from ampwise.runtime.scaling.suspects import Suspects, warn
from ampwise.runtime.scaling.unscaled_ahead import UnscaledAhead

__all__ = ["GradScaler", "LossScaleWarning"]
_OF_A_LOOP = ("last_step", "_guard", "_ring", "_watch", "_suspects", "_grad_norm", "_unscaled")
_OF_A_STEP = ("_made_with", "_named_found", "_counted", "_ahead")


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
        loss_scale: in place of all these but ``device`` and ``enabled``: a loss scale, the name of one (``"headroom"``,
            ``"diffusion"``, ``"rl"``), or a fixed number. A dict gives losses that are scaled by a name a scale each.
        process_group: the ranks that step together or not at all, where neither DTensors nor DistributedDataParallel
            say so; a process group of torch's.

    Attributes:
        last_step: what the last ``step`` did.
        accord: where other ranks are asked.
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
        loss_scale: LossScale | str | float | Mapping[str, LossScale | str | float] | None = None,
        process_group: Group | None = None,
    ) -> None:
        named = loss_scale if isinstance(loss_scale, Mapping) else {}
        options = ScalerOptions(
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            min_scale=min_scale,
            max_scale=max_scale,
            hysteresis=hysteresis,
            enabled=enabled,
        ).or_loss_scale(None if isinstance(loss_scale, Mapping) else loss_scale)
        super().__init__(device, *options.of_torch())
        self._min_scale, self._max_scale, self._hysteresis = options.min_scale, options.max_scale, options.hysteresis
        self._init_growth_tracker, self._headroom = options.growth_tracker, options.headroom
        self._memory = ScaleMemory(options)
        starts = {name: get_loss_scale(one) for name, one in named.items()}
        self._named = NamedLosses(starts, None if named else options.loss_scale())
        self._lower_bound = float(options.init_scale)
        self._num_scale_calls = 0
        self._host_found: bool | None = None
        self._warns = True
        self.accord = Accord(Ranks(process_group))
        self._begin_loop()

    @classmethod
    def from_loss_scale(
        cls,
        loss_scale: LossScale,
        *,
        device: str,
        named: Mapping[str, LossScale] | None = None,
        warns: bool = True,
        ranks: Ranks | None = None,
    ) -> "GradScaler":
        """A scaler that starts at ``loss_scale`` and moves by its rules; disabled for ``NoLossScale``.

        Args:
            loss_scale: where to start, and the rules.
            device: as torch's.
            named: the scales of named losses; without any, a new name starts from ``loss_scale``.
            warns: False if the caller watches for a scale at its minimum itself.
            ranks: who trains together.
        """
        scaler = cls(device, loss_scale=loss_scale)
        scaler._warns = warns
        scaler.accord = Accord(ranks or Ranks())
        if named:
            scaler._named = NamedLosses(named, None)
        scaler._begin_loop()
        return scaler

    def scale(self, outputs: Any, name: str | None = None) -> Any:
        """Multiply a tensor, or the tensors of an iterable, by the scale.

        Args:
            outputs: the loss.
            name: give this loss a scale of its own, kept under that name. Its backward pass runs at that scale and
                leaves gradients in the common one, so losses may share parameters; see ``NamedLosses``.
        """
        self._num_scale_calls += 1
        self._made_with = None
        self._ahead.forget()
        if not self._guard.is_saved:
            self._guard.drop()
        if not self._enabled:
            return outputs
        self._suspects.note_loss(outputs)
        self._named.take_back()
        if name is None:
            self._moves = True
            return super().scale(outputs)
        if self._scale is None and isinstance(outputs, Tensor):
            self._lazy_init_scale_growth_tracker(outputs.device)
        return self._named.scale(outputs, name, self._scale)

    def get_scale(self, name: str | None = None) -> float:
        """The scale, or that of the loss with this name; waits for the device."""
        return super().get_scale() if name is None or not self._enabled else self._named.value(name)

    def measure(self, *optimizers: Optimizer) -> None:
        """Take in how large the optimizers' gradients are, before somebody else than this scaler unscales them."""
        self._unscaled.update((id(one), one) for one in optimizers)
        if self._enabled and self._scale is not None:
            samples = not self._ring.is_paused and self._ring.num_steps % SAMPLE_INTERVAL == 0
            for optimizer in optimizers:
                self._watch.look(optimizer, device=self._scale.device, samples=samples)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale they were made with, and test the results."""
        if self._enabled and self._ahead.give(optimizer, self._per_optimizer_states):
            return
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
        self._suspects.note_optimizer(optimizer)
        closure, args, kwargs = split_closure(args, kwargs)
        self._host_found = None
        self._ahead.give(optimizer, self._per_optimizer_states)
        with self._scale_of_gradients(optimizer):
            if closure is None:
                returned = self._torchs_step(optimizer, args, kwargs)
            else:
                state = self._per_optimizer_states[id(optimizer)]
                unscale, num_calls = partial(self.unscale_, optimizer), lambda: self._num_scale_calls
                returned = step_with_closure(
                    optimizer, state, closure, args, kwargs, unscale=unscale, num_scale_calls=num_calls
                )
            self.last_step = self._result(optimizer)
        return returned

    def ballot(self, optimizer: Optimizer) -> Ballot:
        """What is known of the optimizer's unscaled gradients; what is settled there holds here."""
        scale, _ = self._check_scale_growth_tracker("ballot")
        found: Found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        has_gradients = bool(found)
        if not has_gradients:
            found[scale.device] = torch.zeros_like(scale)
        return Ballot(found=found, has_gradients=has_gradients)

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

    def skip_together(self, optimizers: Iterable[Optimizer]) -> None:
        """Skip all of these, already unscaled, if one of them has non-finite gradients."""
        states = (self._per_optimizer_states[id(one)] for one in optimizers)
        share_found(states, self._check_scale_growth_tracker("skip_together")[0])

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
        self._ring.add_result(result)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Move the scale after the step, or set it to ``new_scale``.

        Called after each of several optimizers of one step it counts that step once.
        """
        if not self._enabled:
            self._ring.add_norm(self._grad_norm)
            self._grad_norm = None
        elif new_scale is None:
            self._advance()
        else:
            states = [one for one in self._per_optimizer_states.values() if one["found_inf_per_device"]]
            found = sum_all_found(states, self._scale) if states and self._scale is not None else None
            super().update(checked_scale(new_scale))
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
        check_models(modules)
        self._suspects.note_models(modules)
        return attach(self._guard, modules) if self._enabled else lambda: None

    def note_grad_norm(self, norm: Tensor) -> None:
        """Let the history's next row hold ``norm``, such as ``clip_grad_norm_`` returns it; nothing is waited for."""
        self._grad_norm = norm

    def history(self) -> History:
        """The scale, the gradient norm and whether it was skipped, of the last 1000 steps. Waits for the device."""
        return self._ring.read()

    def signs(self) -> tuple[Sign, ...]:
        """The signs of failure in the history: gradients that explode, gradients that vanish, a scale that saws.

        A healthy run has none. Vanishing is judged by a sample in every 50th step. Waits for the device.
        """
        return signs(self.history())

    def plot(self, *, width: int = 72, height: int = 8) -> str:
        """The history's scale as a plot in plain text, for a terminal or a log."""
        return self.history().plot(width=width, height=height)

    def snapshot_scale(self) -> Tensor | None:
        """A copy of the scale on its device; None if there is none, or none yet."""
        scale = self._get_scale_async() if self._enabled else None
        return None if scale is None else scale.clone()

    def state_dict(self) -> dict[str, Any]:
        """Torch's five entries, and ``num_overflows``, ``headroom`` and ``named`` where the scaler has them."""
        state = super().state_dict()
        if not self._enabled:
            return state
        named = self._named.state()
        return {**state, **self._memory.state(), **({"named": named} if named else {})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of one of ours or of torch's."""
        super().load_state_dict(state_dict)
        if not self._enabled:
            return
        self._memory.load(state_dict)
        self._named.load(state_dict.get("named", {}))
        self._forget_iteration()
        self._lower_bound = float(self._init_scale)
        if not self._init_scale >= self._min_scale:
            warn(f"the loaded loss scale {self._init_scale} is below the minimum; it is set to {self._min_scale:g}")
            self._init_scale = self._lower_bound = self._min_scale
            if self._scale is not None:
                self._scale.fill_(self._min_scale)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        for name in (*_OF_A_LOOP, *_OF_A_STEP, "accord"):
            del state[name]
        return {**state, "_named": self._named.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.accord = Accord(Ranks())
        self._begin_loop()

    def _begin_loop(self) -> None:
        """Set up what belongs to one loop; a copy, or a file, does not take it along."""
        self.last_step: StepResult | None = None
        self._guard, self._ring = BufferGuard(()), HistoryRing()
        self._watch = GradientWatch(wants_amax=self._headroom is not None)
        self._suspects = Suspects(min_scale=self._min_scale, max_scale=self._max_scale, warns=self._warns)
        self._grad_norm: Tensor | None = None
        self._unscaled: WeakValueDictionary[int, Optimizer] = (
            WeakValueDictionary()
        )  # by the ids that torch's states have
        self._forget_iteration()

    def _forget_iteration(self) -> None:
        """Start anew: no step is half counted."""
        self._made_with: Tensor | None = None
        self._named_found: Tensor | None = None
        self._moves = False
        self._counted: WeakSet[Optimizer] = WeakSet()
        self._ahead = UnscaledAhead()
        self._watch.forget()

    # ------------------------------------------------------------------ unscaling

    def _unscale_grads_(
        self,
        optimizer: Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,  # noqa: FBT001 - torch's own signature
    ) -> dict[torch.device, Tensor]:
        self.measure(optimizer)
        may_overflow = self._may_overflow(inv_scale)
        found = unscale_all_(optimizer, inv_scale, found_inf, allow_fp16=allow_fp16, may_overflow=may_overflow)
        return self.accord.agreed(optimizer, found, inv_scale if self._scale is None else self._scale)

    def _check_inf_per_device(self, optimizer: Optimizer) -> dict[Any, Any]:
        """Test what a fused optimizer's own unscaling will give."""
        scale, _ = self._check_scale_growth_tracker("_check_inf_per_device")
        self.measure(optimizer)
        if not self._may_overflow(scale.reciprocal()):
            return super()._check_inf_per_device(optimizer)
        found = self.accord.agreed(optimizer, check_all(optimizer, scale), scale)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found
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
        if not self._enabled or self._made_with is None or optimizer in self._counted:
            yield
            return
        current, self._scale = self._scale, self._made_with
        try:
            yield
        finally:
            self._scale = current

    # ------------------------------------------------------------------ stepping

    def _torchs_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        start_momenta(optimizer)
        try:
            return super().step(optimizer, *args, **kwargs)
        except AssertionError as error:
            if not tells_of_no_gradient(error):
                raise
            self._per_optimizer_states.pop(id(optimizer))
            raise AssertionError(f"{error} {NO_GRADIENT}") from error

    def _maybe_opt_step(self, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        scale, _ = self._check_scale_growth_tracker("step")
        found, value = torch.stack((sum_found(optimizer_state, scale), scale)).tolist()
        self._host_found = bool(found)
        if self._made_with is None and not host.reads_freely(scale):
            self._lower_bound = value
            self._suspects.judge(skipped=self._host_found, scale=value)
        return None if found else optimizer.step(*args, **kwargs)

    def _result(self, optimizer: Optimizer) -> StepResult:
        scale, _ = self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        found = self._host_found
        if found is None and state["found_inf_per_device"]:
            found = sum_found(state, scale)
        return StepResult(found_inf=found, scale_tensor=scale.clone())

    # ------------------------------------------------------------------ updating

    def _advance(self) -> None:
        scale, growth_tracker = self._check_scale_growth_tracker("update")
        states = {key: state for key, state in self._per_optimizer_states.items() if state["found_inf_per_device"]}
        if not states:
            raise AssertionError("No inf checks were recorded prior to update.")
        found = sum_all_found(states.values(), scale)
        before = scale.clone()
        self._ahead.keep(states)
        stepped = {one for key in states if key not in self._ahead and (one := self._unscaled.get(key)) is not None}
        if self._counted and self._counted.isdisjoint(stepped):
            made_with = before if self._made_with is None else self._made_with
            back_off_once_(self._memory.with_scale(scale, growth_tracker), self._own(found), made_with, self._rules())
            self._ring.amend(found)
            self._counted |= stepped
            self._made_with = made_with
        else:
            self._count_step(scale, growth_tracker, found, before)
            self._counted = WeakSet(stepped)
            self._made_with = before
        self._lower_bound = max(self._lower_bound * self._backoff_factor, self._min_scale)
        if host.reads_freely(scale):
            self._lower_bound = scale.item()
            self._suspects.judge(skipped=bool(found), scale=before.item())
        elif self._host_found is None:
            self._suspects.hear(found)
        self._guard.restore(found, keep=True)
        self._per_optimizer_states = fresh_optimizer_states()
        self._suspects.losses.clear()

    def _count_step(self, scale: Tensor, growth_tracker: Tensor, found: Tensor, before: Tensor) -> None:
        self._named_found = self._named.advance(self.accord.peers)
        if self._moves or self._named_found is None:
            state = self._memory.with_scale(scale, growth_tracker)
            amax = self._watch.amax(before)
            amax = amax if self._headroom is None else self.accord.largest(amax, before)
            advance_(state, self._own(found), self._rules(), amax=amax)
        self._ring.add(scale=before, found_inf=found, grad_norm=self._grad_norm, shares=self._watch.shares())
        self._grad_norm, self._moves = None, False
        self._watch.forget()

    def _own(self, found: Tensor) -> Tensor:
        """What the common scale is to answer for: an overflow that a named loss had is that loss's."""
        return found if self._named_found is None else torch.where(self._named_found != 0, 0.0, found)

    def _rules(self) -> Rules:
        return self._headroom or ScaleRules(
            growth_factor=self._growth_factor,
            backoff_factor=self._backoff_factor,
            growth_interval=self._growth_interval,
            min_scale=self._min_scale,
            max_scale=self._max_scale,
            hysteresis=self._hysteresis,
        )

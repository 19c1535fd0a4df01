"""The training step: one loop for fp32, tf32, bf16 and fp16."""

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from ampwise._base.errors import RecordError, UsageError
from ampwise.compat.optim import all_parameters, clear_gradients, needs_closure, portable_state
from ampwise.interpose.internal import announced, users_code
from ampwise.plan.find import AnyPlan, find_plan
from ampwise.runtime.casts.cast_hold import CastHold
from ampwise.runtime.ranks.distributed import Group, Ranks, find_agreement, peers_of
from ampwise.runtime.scaling.buffers import BufferGuard
from ampwise.runtime.scaling.late_news import LateNews
from ampwise.runtime.scaling.loss_scale import LossScale, NoLossScale
from ampwise.runtime.scaling.misuse import (
    as_tuple,
    backward,
    check_losses,
    check_options,
    name_parameters,
    refuse_fp16_parameters,
    refuse_passes_under_ddp,
    warn_of_no_autocast,
)
from ampwise.runtime.scaling.overflow import OverflowWatch, floor_of
from ampwise.runtime.scaling.result import StepResult
from ampwise.runtime.scaling.scaler import GradScaler
from ampwise.runtime.step.captured import CapturedStep, LossFunction, Recordable, Trace, num_warm_ups_of
from ampwise.runtime.step.findings import any_of, on_host, sum_of
from ampwise.runtime.step.graph import graphs_for
from ampwise.runtime.step.loop_events import LoopEvents
from ampwise.runtime.step.planned import apply_to_all, scale_of_plan
from ampwise.runtime.step.preemption import watch_preemption
from ampwise.runtime.step.preparation import Preparation
from ampwise.runtime.step.regime import Regime, choose_together
from ampwise.runtime.step.step_state import state_faults
from ampwise.runtime.step.update import ClippedUpdate, choose_fused, clip_, ready_for_capture, unfuse_misfits

Loss = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
AnyLossScale = LossScale | str | float


class TrainStep:
    """Everything between the loss and the next batch, in the only right order, in any precision.

    Example::

        step = TrainStep(optimizer, modules=[model], precision="auto", clip_grad_norm=1.0, accumulation_steps=4)
        for x, y in loader:
            with step.autocast():
                loss = criterion(model(x), y)
            result = step(loss)

    Law: in fp32, bf16 and fp16 the parameters are those of the loop written by hand with ``torch.autocast``,
    ``torch.amp.GradScaler`` and the same optimizers (made with ``fused=True`` if they are in ``fused``), bit for bit;
    after a skipped step the modules' buffers are what they were before it. One exception: where norms are clipped on a
    CPU, gradients that fp32 holds as subnormals (below 1.2e-38) may differ in their last bit.

    Args:
        optimizers: one or several; each is skipped alone, as by ``GradScaler``, when its gradients are not finite, but
            all together where their norm is clipped: it is not finite either then, and would spoil them all.
        modules: the models trained. Their buffers are put back when a step is skipped; errors name their parameters.
        schedulers: advanced once after every step that was not skipped. On an accelerator with loss scaling this waits
            for the device, once a step.
        precision: ``auto``, ``fp32``, ``tf32``, ``bf16`` or ``fp16``; ``choice`` says which was taken, and why.
        clip_grad_norm: clip the norm of all gradients together; ``float("inf")`` measures it and clips nothing.
        clip_grad_value: clip every element.
        accumulation_steps: how many losses make one step; each is divided by it.
        plan: put into effect on ``modules`` until ``undo_plan()``, in the place of a precision: a plan, or what names
            one (see ``apply_plan``). In fp16 the loss is scaled.
        loss_scale: another than the precision's own: a loss scale, the name of one (``"headroom"``, ``"diffusion"``,
            ``"rl"``) or a fixed number; or a dict of those, a scale for each loss of a ``step({"name": loss, ...})``.
        capture: ready the optimizers for ``capture``: their learning rate and step counts are kept on the device.
        on_preemption: after SIGTERM, called within the next step, when all of it is done; then the process ends with 0.
        process_group: the ranks that step together or not at all, where neither DTensors nor ``modules`` say so.

    Attributes:
        fused: the optimizers given torch's fused kernel, being made with neither ``fused`` nor ``foreach`` (logged).
        preparation: what becomes of gradients before the optimizers, and the ranks it asks.
        undo_plan: takes the plan back off the models; None without one.

    Raises:
        UsageError: options that cannot be meant; all of them are named.
        CannotRunError: the device cannot compute in ``precision``.
    """

    def __init__(  # noqa: PLR0913 - one loop, all its options
        self,
        optimizers: Optimizer | Sequence[Optimizer],
        *,
        modules: Module | Sequence[Module] | None = (),
        schedulers: Any = (),
        precision: str = "auto",
        clip_grad_norm: float | None = None,
        clip_grad_value: float | None = None,
        accumulation_steps: int = 1,
        plan: AnyPlan | None = None,
        loss_scale: AnyLossScale | Mapping[str, AnyLossScale] | None = None,
        capture: bool = False,
        on_preemption: Callable[[], object] | None = None,
        process_group: Group | None = None,
    ) -> None:
        self.optimizers: tuple[Optimizer, ...] = as_tuple(optimizers)
        self.modules: tuple[Module, ...] = as_tuple(modules)
        self.schedulers: tuple[Any, ...] = as_tuple(schedulers)
        check_options(
            self.optimizers,
            self.modules,
            self.schedulers,
            precision=precision,
            clip_grad_norm=clip_grad_norm,
            clip_grad_value=clip_grad_value,
            accumulation_steps=accumulation_steps,
            plan=plan,
        )
        self._clip_grad_norm, self._clip_grad_value = clip_grad_norm, clip_grad_value
        self.accumulation_steps = accumulation_steps
        self._params = all_parameters(self.optimizers)
        device = self._params[0].device
        self.plan = None if plan is None else find_plan(plan)
        ranks = Ranks(process_group, self.modules)
        agreement = find_agreement(self._params, group=process_group, modules=self.modules)
        peers = peers_of(self.modules, agreement)
        self.choice = choose_together("fp32" if self.plan else precision, device=device, peers=peers)
        self._events = LoopEvents(self.choice.precision)
        self._regime = Regime(precision=self.choice.precision, device_type=device.type)
        scale, named = self._regime.choose_loss_scale(scale_of_plan(self.plan) if loss_scale is None else loss_scale)
        self.scaler = GradScaler.from_loss_scale(scale, named=named, device=device.type, warns=False, ranks=ranks)
        with ExitStack() as on_error:
            self.undo_plan = apply_to_all(self.modules, self.plan, optimizers=self.optimizers) if self.plan else None
            if self.undo_plan:
                on_error.callback(self.undo_plan)
            self.preparation = Preparation(
                self.optimizers,
                self._params,
                self.scaler,
                max_norm=clip_grad_norm,
                max_value=clip_grad_value,
                agreement=agreement,
                peers=peers,
            )
            self._begin(scale, capture=capture, leaves=on_preemption is not None)
            self._leave_if_told = watch_preemption(self, on_preemption, device)
            on_error.pop_all()

    def _begin(self, scale: LossScale, *, capture: bool, leaves: bool) -> None:
        """Check ranks and parameters, and make what belongs to the steps to come; raises as the constructor."""
        self.preparation.check_start(self.modules, leaves=leaves)
        name_all = partial(name_parameters, self.modules, self.optimizers)
        if self.scaler.is_enabled():
            refuse_fp16_parameters(name_all())
        self._overflow_watch = OverflowWatch(floor_of(scale), name_all)
        self._late_news = LateNews()
        self._buffers = BufferGuard(() if isinstance(scale, NoLossScale) else self.modules)
        self._num_losses = self._num_open = 0
        self.fused = choose_fused(self.optimizers)
        self._casts = CastHold(self._params)
        self._graphs = graphs_for(self._params[0].device) if capture else None
        self._captures, self._generation = capture, 0
        self._window_owner: object | None = None
        self._window: tuple[list[Tensor | None], Any] = [], None
        self._findings: list[tuple[Optimizer, Tensor | bool | None]] = []
        if self._graphs:
            ready_for_capture(self.optimizers, skips=self.scaler.is_enabled())
        self._holds_casts = self.accumulation_steps > 1 and self._regime.casts and self._graphs is None
        weakref.finalize(self, self._casts.drop)
        self._needs_closure = [type(one).__name__ for one in self.optimizers if needs_closure(one)]
        self._is_autocast_used = self.precision == "fp32"

    @property
    def precision(self) -> str:
        """The precision taken: ``fp32``, ``tf32``, ``bf16`` or ``fp16``; ``fp32`` around a plan."""
        return self._regime.precision

    @contextmanager
    def autocast(self) -> Generator[None]:
        """The context of the forward pass and the loss."""
        if torch.is_grad_enabled() and not self._buffers.is_saved:
            self._buffers.save()
            if self._holds_casts:  # else the step looks in time
                self._params[:] = all_parameters(self.optimizers)
        hold = self._casts.forward_pass() if self._holds_casts and not self._num_open else nullcontext()
        self._num_open += 1
        self._is_autocast_used = True
        try:
            with hold, self._regime.forward():
                yield
        finally:
            self._num_open -= 1

    def __call__(self, loss: Loss | Callable[[], Loss], last: bool = False) -> StepResult:  # noqa: FBT001, FBT002 - reads as step(loss, last=True)
        """Backpropagate the loss and, when it completes a window of accumulation, step.

        Args:
            loss: a scalar, or several to backpropagate together; or several by names, each with a loss scale of its
                own, backpropagated one after the other; or, for an optimizer that evaluates the loss itself (LBFGS), a
                function that returns one and opens ``autocast()`` itself.
            last: end the window here; it is divided by the number of losses it really has.

        Raises:
            UsageError: the loss cannot be trained on; the text says why and what to do.
            HopelessOverflowError: steps are skipped and a smaller loss scale will not help.
        """
        if self._num_open:
            raise UsageError(
                "step() was called inside an autocast region: call it after the `with step.autocast():` block"
            )
        if self._window_owner is not None:
            raise UsageError("a window of accumulation is open that a captured step began: end it with that, last=True")
        if callable(loss) and not isinstance(loss, Tensor):
            return self._step_with_closure(loss)
        if self._needs_closure:
            raise UsageError(
                f"{self._needs_closure[0]} evaluates the loss itself: give step() a function that opens autocast() and "
                "returns the loss, without calling backward"
            )
        if not self._is_autocast_used:
            self._is_autocast_used = True
            warn_of_no_autocast(self.precision, stacklevel=2)
        losses, names = check_losses(loss), tuple(loss) if isinstance(loss, Mapping) else ()
        if names:
            refuse_passes_under_ddp(losses, self.modules)
        self._backward(losses, share=self.accumulation_steps, names=names)
        self._num_losses += 1
        if self._num_losses < self.accumulation_steps and not last:
            return StepResult(is_update=False, scale_tensor=self.scaler.snapshot_scale())
        num_losses, self._num_losses = self._num_losses, 0
        return self._step(losses, correction=self.accumulation_steps / num_losses)

    def capture(self, loss_fn: LossFunction) -> CapturedStep:
        """Make one function of forward pass, loss, backward pass and step, which a GPU runs without Python.

        Example::

            step = TrainStep(optimizer, modules=[model], clip_grad_norm=1.0, capture=True)
            train = step.capture(lambda x, y: criterion(model(x), y))
            for x, y in loader:
                result = train(x, y)

        The first three steps are taken as ever; they warm up. The next is recorded as CUDA graphs, which every later
        call replays: batch copied in, forward pass, backward pass, unscaling, test, clipping, optimizers, scale. So the
        function's Python runs once more and never again, and every batch must have the first one's shapes. Without CUDA
        every step is taken as ever, with the same results and the same checks.

        Args:
            loss_fn: takes a batch, gives the loss or several; it is called under ``autocast()``.

        Raises:
            UsageError: the TrainStep was made without ``capture=True``, or for an optimizer that evaluates the loss.
        """
        if not self._captures:
            raise UsageError("capture() needs TrainStep(..., capture=True), which readies the optimizers for it")
        if self._needs_closure:
            raise UsageError(f"{self._needs_closure[0]} decides on the host how often it evaluates: it is not captured")
        return CapturedStep(
            loss_fn,
            Recordable(
                run=self._run,
                trace=self._trace,
                take_in=self._take_in,
                num_open_for=self._num_open_for,
                generation=lambda: self._generation,
            ),
            graphs=self._graphs,
            device=self._params[0].device,
            accumulation_steps=self.accumulation_steps,
            num_warm_ups=num_warm_ups_of(self.modules),
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizers, the schedulers and the loss scale.

        Raises:
            UsageError: inside a window of accumulation, whose gradients it would lose.
        """
        if self._num_losses:
            place = f"{self._num_losses} of {self.accumulation_steps} losses"
            raise UsageError(
                f"state_dict() inside a window of accumulation ({place}): its gradients would be lost; "
                "save after a result with is_update, or end the window with last=True"
            )
        return {
            "precision": self.precision,
            "loss_scale": self.scaler.state_dict(),
            "optimizers": [portable_state(one) for one in self.optimizers],
            "schedulers": [one.state_dict() for one in self.schedulers],
            "num_skips_in_a_row": self._overflow_watch.num_skips_in_a_row,
        }

    def state_faults(self, state_dict: Mapping[str, Any]) -> list[str]:
        """Why ``load_state_dict`` would refuse this; empty if it would not."""
        return state_faults(state_dict, self.optimizers, self.schedulers)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave, of a run in this precision or another.

        Raises:
            RecordError: it is of another number of optimizers or schedulers, or no state of a TrainStep.
        """
        faults = self.state_faults(state_dict)
        if faults:
            raise RecordError("; ".join(faults))
        for one, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            one.load_state_dict(state)
        self.fused = tuple(dict.fromkeys((*self.fused, *choose_fused(self.optimizers))))
        for one, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            one.load_state_dict(state)
        if self.scaler.is_enabled() and state_dict.get("loss_scale"):
            self.scaler.load_state_dict(state_dict["loss_scale"])
        self._overflow_watch.num_skips_in_a_row = int(state_dict.get("num_skips_in_a_row", 0))
        self._num_losses, self._window_owner = 0, None
        self._generation += 1
        if self._graphs:
            ready_for_capture(self.optimizers, skips=self.scaler.is_enabled())
        self._casts.drop()

    # ------------------------------------------------------------------ captured

    def _num_open_for(self, owner: object) -> int:
        if self._num_losses and self._window_owner is not owner:
            raise UsageError(
                "a window of accumulation is open that step(loss) began: end it with step(loss, last=True)"
            )
        return self._num_losses

    def _evaluate(self, loss_fn: LossFunction, arguments: Sequence[Any], *, last: bool) -> tuple[StepResult, Tensor]:
        with self.autocast():
            loss = loss_fn(*arguments)
        return self(loss, last=last), sum_of(check_losses(loss))

    def _run(self, loss_fn: LossFunction, arguments: Sequence[Any], *, last: bool, owner: object) -> StepResult:
        self._window_owner = None
        try:
            result, loss = self._evaluate(loss_fn, arguments, last=last)
        finally:
            self._window_owner = owner if self._num_losses else None
        return replace(result, loss_tensor=loss)

    def _trace(self, loss_fn: LossFunction, arguments: Sequence[Any], *, num_open: int, last: bool) -> Trace:
        if num_open:
            grads, copies = self._window
            for param, grad in zip(self._params, grads, strict=True):
                param.grad = grad
            self._buffers.resume(copies)
        owner, self._window_owner, self._events.is_recording = self._window_owner, None, True
        self._findings = []
        try:
            with self.scaler.recording():
                result, loss = self._evaluate(loss_fn, arguments, last=last)
            if not result.is_update:  # what the window's other graphs go on with, and others must not get the memory of
                self._window = [param.grad for param in self._params], self._buffers.copies()
        except BaseException:
            self._abandon()
            raise
        finally:
            self._num_losses, self._window_owner, self._events.is_recording = num_open, owner, False
        stepping, found = tuple(one for one, _ in self._findings), tuple(found for _, found in self._findings)
        return Trace(loss=loss, result=result, stepping=stepping, found_inf=found)

    def _abandon(self) -> None:
        """Let a step that could not be recorded leave nothing: its gradients are in no optimizer's hands yet."""
        self._buffers.drop()
        self._num_open = 0
        for one in self.optimizers:
            one.zero_grad()

    def _take_in(self, trace: Trace, *, owner: object) -> StepResult:
        result = trace.result
        self._num_losses = 0 if result.is_update else self._num_losses + 1
        self._window_owner = None if result.is_update else owner
        self._events.backward_started((trace.loss,))
        self._events.backward_ended((trace.loss,))
        if not result.is_update:
            return result
        self.scaler.note_replayed_step(result)
        outcomes = [replace(result, found_inf=found) for found in trace.found_inf]
        for optimizer, outcome in zip(trace.stepping, outcomes, strict=True):
            self._events.step_started(optimizer)
            self._events.step_ended(optimizer, outcome, result.grad_norm_tensor)
        self._advance_schedulers(trace.stepping, outcomes)
        self._leave_if_told()
        return result

    # ------------------------------------------------------------------ the sequence

    def _backward(self, losses: tuple[Tensor, ...], *, share: int, names: tuple[str, ...] = ()) -> None:
        self._events.backward_started(losses)
        shares = [loss if share == 1 else loss / share for loss in losses]
        self._casts.before_backward(shares)
        with self._regime.backward(), announced():
            backward([self.scaler.scale(one, name) for one, name in zip_longest(shares, names)], each=bool(names))
        self._events.backward_ended(losses)

    def _step(self, losses: tuple[Tensor, ...], *, correction: float) -> StepResult:
        self._casts.drop()
        self._params[:] = all_parameters(self.optimizers)
        self.fused = unfuse_misfits(self.optimizers, self.fused)
        ready = self.preparation.prepare(correction=correction)
        results = [self._step_one(one, ready.norm, update=ready.update) for one in ready.stepping]
        return self._end(ready.stepping, results, losses, ready.norm)

    def _step_one(
        self,
        optimizer: Optimizer,
        norm: Tensor | None,
        *,
        closure: Callable[[], Any] | None = None,
        update: ClippedUpdate | None = None,
    ) -> StepResult:
        self._events.step_started(optimizer)
        with announced():
            if update is None:
                self.scaler.step(optimizer, *(() if closure is None else (closure,)))
            else:
                update.step(optimizer)
                self.scaler.note_finite_step(optimizer)
        result = self.scaler.last_step or StepResult()
        self._events.step_ended(optimizer, result, norm)
        return result

    def _end(
        self,
        stepping: Sequence[Optimizer],
        results: Sequence[StepResult],
        losses: tuple[Tensor, ...],
        norm: Tensor | None,
    ) -> StepResult:
        # An autocast region around the whole loop, not ours, would go on serving casts of the old weights.
        torch.clear_autocast_cache()
        if norm is not None:
            self.scaler.note_grad_norm(norm)
        self.scaler.update()
        found = any_of([one.found_inf for one in results])
        self._buffers.restore(found)
        known = on_host(found)
        result = StepResult(
            found_inf=found if known is None else known, scale_tensor=results[0].scale_tensor, grad_norm_tensor=norm
        )
        self._watch_overflows(result, losses)
        if self._events.is_recording:
            self._findings = [(one, result.found_inf) for one, result in zip(stepping, results, strict=True)]
        else:
            self._advance_schedulers(stepping, results)
        for one in self.optimizers:
            clear_gradients(one)
        if not self._events.is_recording:
            self._leave_if_told()
        return result

    def _watch_overflows(self, result: StepResult, losses: Sequence[Tensor]) -> None:
        found = result.found_inf
        if not isinstance(found, Tensor):
            self._overflow_watch.check(skipped=bool(found), scale=result.scale_tensor, losses=losses)
        elif not self._events.is_recording:
            self._overflow_watch.late_check(self._late_news.take(found), losses=losses)

    def _advance_schedulers(self, stepping: Sequence[Optimizer], results: Sequence[StepResult]) -> None:
        skipped = {id(one) for one, result in zip(stepping, results, strict=True) if self.schedulers and result.skipped}
        for scheduler in self.schedulers:
            if id(scheduler.optimizer) not in skipped:
                scheduler.step()

    def _step_with_closure(self, closure: Callable[[], Loss]) -> StepResult:
        if self.accumulation_steps > 1 or len(self.optimizers) > 1:
            raise UsageError(
                "a closure steps one optimizer and makes its own gradients: use accumulation_steps=1 and one TrainStep "
                f"for each optimizer (given: accumulation_steps={self.accumulation_steps}, "
                f"{len(self.optimizers)} optimizers)"
            )
        optimizer = next(iter(self.optimizers))
        losses: tuple[Tensor, ...] = ()
        norm: Tensor | None = None

        def evaluate() -> Any:
            nonlocal losses, norm
            optimizer.zero_grad()
            with users_code():
                loss = closure()
            losses = check_losses(loss)
            self._backward(losses, share=1)
            self.scaler.unscale_(optimizer)
            norm = clip_(self._params, max_norm=self._clip_grad_norm, max_value=self._clip_grad_value)
            return sum(losses[1:], losses[0])

        result = self._step_one(optimizer, None, closure=evaluate)
        return self._end([optimizer], [result], losses, norm)

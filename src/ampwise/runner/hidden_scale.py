"""Dynamic loss scaling that the script never sees: its loss, its gradients and its hooks hold true values."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ampwise.compat.autograd import is_inside_backward, leaves_of
from ampwise.compat.optim import parameters_of
from ampwise.interpose.backward import BACKWARD, GRAD, Pass, backward_pass, grad_pass, roots_of
from ampwise.interpose.caller import callers, is_torch
from ampwise.interpose.gradient_views import RETAIN_GRAD, View, show_true_gradients
from ampwise.interpose.optimizer_step import around_steps, on_optimizer
from ampwise.interpose.seam import Undo, intercept, undo_all
from ampwise.observe.events import StepOutcome
from ampwise.runner.leaf_hooks import LeafHooks, Mark, Owners
from ampwise.runner.regions import needs_exact_losses
from ampwise.runner.scaled_pass import leaf_of, leaves, scaled_seeds
from ampwise.runner.skipping import ClosureSkips
from ampwise.runner.verdicts import Verdicts, any_found, non_finite_in
from ampwise.runtime.gradients.gradients import local_gradient
from ampwise.runtime.ranks.distributed import Ranks
from ampwise.runtime.scaling.closure import Overflowed
from ampwise.runtime.scaling.loss_scale import DynamicLossScale, LossScale

_LARGEST_FINITE_SEED = 2.0**15
"""Gradients taken by hand are mostly a sum's: 2**16 is infinite in fp16, and the script would see the NaN."""


class HiddenScale:
    """Scales each backward pass at its roots and unscales at its leaves.

    The scale enters as the gradient of the loss, so the loss that the script prints is its own; each leaf's hook
    takes it out again before autograd accumulates, so clipping, logging, hooks and optimizers inside the pass meet
    true gradients. Whether they are finite is looked at right after the pass; a step that would use others is left
    out whole.

    Args:
        loss_scale: The state to start from; None is torch's dynamic scale.
    """

    def __init__(self, loss_scale: LossScale | None = None) -> None:
        self.state: LossScale = loss_scale or DynamicLossScale()
        self._hooks = LeafHooks()
        self._verdicts = Verdicts()
        self._closures = ClosureSkips(self._verdicts.is_finite)
        self._ranks = Ranks()
        self._suspended = False
        self._has_optimizer = False
        self._outcome = StepOutcome(optimizer=None)
        self._undos: list[Undo] = []

    @property
    def scale(self) -> float:
        """What the next pass is scaled by."""
        return self.state.scale

    def start(self) -> None:
        """Attach to the loop."""
        self._undos = [
            on_optimizer(self._on_optimizer),
            intercept(BACKWARD, self._around_backward),
            intercept(GRAD, self._around_grad),
            around_steps(self._around_step),
            intercept(RETAIN_GRAD, self._around_retain_grad),
            show_true_gradients(View(shown=self._hooks.unscaled, answered=self._hooks.scaled)),
        ]

    def stop(self) -> None:
        """Detach; gradients that are there are true ones. May be called more than once."""
        undos, self._undos = self._undos, []
        undo_all(undos)
        self._hooks.clear()

    def judge(self, optimizer: Any) -> StepOutcome:
        """How the last step went."""
        outcome = self._outcome
        return StepOutcome(optimizer=optimizer, stepped=outcome.stepped, scale=outcome.scale)

    def _on_optimizer(self, optimizer: Any) -> None:
        self._has_optimizer = True
        for param in parameters_of(optimizer):
            if param.is_leaf and param.requires_grad:
                self._hooks.own(param, optimizer)

    def _around_backward(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if is_inside_backward():
            self._mark_nested(roots_of(args, kwargs))
            proceed(*args, **kwargs)
            return
        call = backward_pass(args, kwargs)
        seeds = None if self._suspended else scaled_seeds(call, self.scale)
        if seeds is None:
            proceed(*args, **kwargs)
            return
        self._verdicts.clear_stale()
        reached = [(leaf, self._hooks.mark(leaf)) for leaf in leaves(call)]
        for tensor in call.inputs or ():
            if isinstance(tensor, Tensor) and not tensor.is_leaf:
                tensor.retain_grad()  # as torch does itself
        with self._scaled_pass(self.scale):
            call.with_seeds(seeds).run_backward(proceed)
        self._look_at([(mark, gradient) for leaf, mark in reached if (gradient := leaf.grad) is not None])

    def _mark_nested(self, roots: Sequence[Any]) -> None:
        """A pass within a pass starts from scaled gradients: of its leaves, only parameters keep what they get."""
        if self._hooks.is_active:
            for leaf in leaves_of(roots):
                if isinstance(leaf, torch.nn.Parameter):
                    self._hooks.mark(leaf)

    def _around_grad(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if is_inside_backward():
            with self._hooks.scaled_by(None):  # whoever asks hands the result on to the pass that runs
                return proceed(*args, **kwargs)
        if self._suspended or is_torch(next(callers())):
            return proceed(*args, **kwargs)
        call = grad_pass(args, kwargs)
        scale = min(self.scale, _LARGEST_FINITE_SEED)
        seeds = scaled_seeds(call, scale)
        if seeds is None:
            return proceed(*args, **kwargs)
        return self._scaled_grad(proceed, call.with_seeds(seeds), scale)

    def _scaled_grad(self, proceed: Callable[..., Any], call: Pass, scale: float) -> Any:
        wanted = [leaf_of(one) for one in call.inputs or ()]
        marks = [None if leaf is None else self._hooks.mark(leaf) for leaf in wanted]
        with self._scaled_pass(scale):
            result = call.run_grad(proceed)
        given = list(result.values()) if isinstance(result, dict) else list(result)
        true = [
            one if one is None or mark is not None else one * (1.0 / scale)
            for one, mark in zip(given, marks, strict=True)
        ]
        self._look_at(
            [(mark, one) for mark, one in zip(marks, true, strict=True) if mark and mark.owners and one is not None]
        )
        return dict(zip(result, true, strict=True)) if isinstance(result, dict) else tuple(true)

    @contextmanager
    def _scaled_pass(self, scale: float) -> Generator[None]:
        with self._hooks.true_retained(scale), self._hooks.scaled_by(scale):
            yield

    def _look_at(self, gradients: Iterable[tuple[Mark, Tensor]]) -> None:
        """Find out which owners' gradients are not finite; nobody's are made 0, for no step can be left out."""
        groups: dict[Owners, list[Tensor]] = {}
        for mark, gradient in gradients:
            groups.setdefault(mark.owners, []).append(gradient)
        orphans = groups.pop((), [])
        for owners, owned in groups.items():
            found_inf = non_finite_in(owned)
            for owner in owners:
                self._verdicts.add(owner(), found_inf)
        if orphans:
            self._clear_orphans(orphans, is_step=not groups)

    def _look_at_shards(self, optimizer: Any) -> None:
        """FSDP puts gradients into its shards outside of autograd, and every rank has others: all look, together."""
        ranks = self._ranks.of(optimizer)
        if ranks is None:
            return
        shards = [grad for param in parameters_of(optimizer) if (grad := local_gradient(param)) is not None]
        found = torch.tensor(float(any_found(non_finite_in(shards))))
        self._verdicts.add(optimizer, [ranks.max(found)])

    def _clear_orphans(self, gradients: Sequence[Tensor], *, is_step: bool) -> None:
        finite = not any_found(non_finite_in(gradients))
        scale = self.scale
        if not finite:
            for gradient in gradients:
                gradient.nan_to_num_(0.0, 0.0, 0.0)
        if is_step and (not finite or not self._has_optimizer):
            self.state = self.state.adjust(finite)
        if not self._has_optimizer:
            self._outcome = StepOutcome(optimizer=None, stepped=finite, scale=scale)

    def _around_step(self, proceed: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if needs_exact_losses(optimizer):
            return self._unscaled_step(proceed, optimizer, args, kwargs)
        scale = self.scale
        if is_inside_backward():  # its gradients have just arrived; the pass is not over
            owned = [p for p in parameters_of(optimizer) if p.is_leaf]
            self._look_at([(self._hooks.mark(p), p.grad) for p in owned if p.grad is not None])
        self._look_at_shards(optimizer)
        if not self._verdicts.is_finite(optimizer):
            self._end_step(optimizer, scale, finite=False)
            return None
        try:
            args, kwargs = self._closures.checked(optimizer, args, kwargs)
            result = proceed(optimizer, *args, **kwargs)
        except Overflowed as overflow:
            self._end_step(optimizer, scale, finite=False)
            return overflow.loss
        self._end_step(optimizer, scale, finite=True)
        return result

    def _end_step(self, optimizer: Any, scale: float, *, finite: bool) -> None:
        if self._verdicts.knows(optimizer):
            self.state = self.state.adjust(finite)
        self._verdicts.clear(optimizer)
        self._outcome = StepOutcome(optimizer=optimizer, stepped=finite, scale=scale)

    def _unscaled_step(
        self, proceed: Callable[..., Any], optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._suspended = True
        try:
            return proceed(optimizer, *args, **kwargs)
        finally:
            self._suspended = False
            self._outcome = StepOutcome(optimizer=optimizer)

    def _around_retain_grad(self, proceed: Callable[..., Any], tensor: Tensor) -> None:
        proceed(tensor)
        if not tensor.is_leaf:
            self._hooks.retain(tensor)

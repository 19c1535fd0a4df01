"""Keeps updates that are too small for parameters below fp32: by fp32 master weights, or rounded by chance.

The optimizer steps on fp32 tensors that stand in its groups for as long as its step runs. The model's own parameters
keep their dtype and memory throughout, so that autograd's graph, DDP's hooks and compiled code know of nothing.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.compat.autocast_cache import Versions, versions_of
from ampwise.compat.optim import needs_closure
from ampwise.interpose.seam import Undo, once
from ampwise.plan.plan import Updates
from ampwise.runtime.casts.cast_values import LOW
from ampwise.runtime.casts.stochastic import Chance

MASTER = "master_weight"
"""The key of a parameter's master weight in the optimizer's state, and so in its ``state_dict``."""


def keep_small_updates(optimizer: Optimizer, updates: Updates | str, *, seed: int = 0) -> Undo:
    """Let ``optimizer`` update parameters in bf16 or fp16 without losing what is below half an ulp of the weight.

    ``master``: the optimizer keeps each such parameter in fp32 too, in its state. Law: the weights are those of
    training in fp32 whose weights are rounded to the parameter's format for each forward pass, bit for bit. A weight
    that was written to since the last step, and is not what its master rounds to, becomes its master.

    ``stochastic``: each step is made in fp32 from the parameters and state as they are; what comes out is rounded up or
    down by chance, right on average, and so is state in the parameter's shape, which stays in the parameter's format.
    The chances depend on ``seed`` and on how many steps were made, not on torch's generators: equal on all ranks, and
    the same again after a checkpoint.

    Either way ``state_dict`` holds all there is, and ``load_state_dict`` keeps its precision. Parameters in fp32 are
    updated as ever. During a step, fp32 copies of gradients (and with ``stochastic`` of weights and state) exist.

    Args:
        optimizer: of any class that does not evaluate the loss itself.
        updates: ``master`` or ``stochastic``; ``nearest`` leaves the optimizer as it is.
        seed: of the chances.

    Returns:
        What makes it an ordinary optimizer again, its state in the format of its parameters.

    Raises:
        UsageError: ``updates`` is none of these, or the optimizer evaluates the loss itself (LBFGS).
        CannotRunError: the optimizer is kept already.
    """
    kind = _kind(updates)
    if kind is Updates.NEAREST:
        return once(lambda: None)
    return SmallUpdates(optimizer, kind, seed=seed).start()


def _kind(updates: Updates | str) -> Updates:
    try:
        return Updates(updates)
    except ValueError:
        names = ", ".join(one.value for one in Updates)
        raise UsageError(f'updates: "{updates}" is none of {names}') from None


class SmallUpdates:
    """What stands between an optimizer and parameters below fp32.

    Args:
        optimizer: whose steps.
        updates: ``MASTER`` or ``STOCHASTIC``.
        seed: of the chances.
        originals: fp32 weights from which parameters were rounded, by ``id``; taken for masters at the first step.
    """

    def __init__(
        self, optimizer: Optimizer, updates: Updates, *, seed: int = 0, originals: dict[int, Tensor] | None = None
    ) -> None:
        if needs_closure(optimizer):
            raise UsageError(
                f'updates = "{updates}": {type(optimizer).__name__} keeps a list of the parameters of its own, and '
                "would go on with those in low precision; take another optimizer, or parameters in fp32"
            )
        if keeper_of(optimizer) is not None:
            raise CannotRunError(f"this {type(optimizer).__name__}'s updates are kept already; undo that first")
        self._optimizer = optimizer
        self._chance = Chance(seed) if updates is Updates.STOCHASTIC else None
        self._originals = originals if originals is not None else {}
        self._narrow: list[list[Tensor]] | None = None
        self._versions: dict[int, Versions] = {}
        self._is_on = False

    def start(self) -> Undo:
        """Take over; returns what gives back."""
        optimizer = self._optimizer
        own = {name: vars(optimizer).get(name) for name in ("step", "load_state_dict")}
        mine = {"step": self._around_step(own["step"]), "load_state_dict": self._around_load(own["load_state_dict"])}
        # first among those hooks that are to come: they see the parameters that the step leaves
        handle = optimizer.register_step_post_hook(self._after_step)
        for name, method in mine.items():
            setattr(optimizer, name, method)
        self._is_on = True

        def undo() -> None:
            handle.remove()
            self._is_on = False
            for name, method in mine.items():
                if vars(optimizer).get(name) is not method:
                    continue  # a scheduler's lies over it, and calls it
                if own[name] is None:
                    delattr(optimizer, name)
                else:
                    setattr(optimizer, name, own[name])
            self._forget()

        return once(undo)

    @torch.no_grad()
    def widen(self, *, every: bool = False) -> None:
        """Put fp32 tensors in the place of parameters below it; ``every``: of those without a gradient, too."""
        if self._narrow is not None:
            return
        groups = self._optimizer.param_groups
        self._narrow = [group["params"] for group in groups]
        for group in groups:
            group["params"] = [self._widened(param, every=every) for param in group["params"]]

    @torch.no_grad()
    def narrow(self, *, writes: bool = True) -> None:
        """Put the parameters back, and what the step made of them into them if it ``writes``."""
        narrow, self._narrow = self._narrow, None
        if narrow is None:
            return
        if self._chance is not None and writes:
            self._chance.begin(self._optimizer.param_groups[0])
        for group, params in zip(self._optimizer.param_groups, narrow, strict=False):
            for wide, param in zip(group["params"], params, strict=False):
                if wide is not param:
                    self._narrow_one(wide, param, writes=writes)
            group["params"] = params

    def _around_step(self, own: Callable[..., Any] | None) -> Any:
        @wraps(own or type(self._optimizer).step)  # with a scheduler's mark, which looks for it
        def step(optimizer: Optimizer, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
            inner = own or partial(type(optimizer).step, optimizer)  # which others may replace later
            if not self._is_on:
                return inner(closure, **kwargs) if closure is not None else inner(**kwargs)
            # last of the hooks before the step: the others see, and may change, the gradients of the parameters
            handle = optimizer.register_step_pre_hook(self._before_step)
            try:
                return inner(**kwargs) if closure is None else inner(self._in_low(closure), **kwargs)
            finally:
                handle.remove()
                self.narrow()  # where the step raised, no hook did

        return MethodType(step, self._optimizer)  # schedulers want a method

    def _before_step(self, *_: object) -> None:
        self.widen()

    def _after_step(self, *_: object) -> None:
        self.narrow()

    def _in_low(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            self.narrow()
            try:
                return closure()
            finally:
                self.widen()

        return evaluate

    def _around_load(self, own: Callable[..., Any] | None) -> Any:
        @wraps(own or type(self._optimizer).load_state_dict)
        def load_state_dict(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
            load = own or partial(type(optimizer).load_state_dict, optimizer)
            if not self._is_on:
                load(state_dict)
                return
            self.widen(every=True)  # torch casts what it loads to the dtype of what is in the groups
            try:
                load(state_dict)
            finally:
                self.narrow(writes=False)

        vars(load_state_dict)["keeper"] = self
        return MethodType(load_state_dict, self._optimizer)

    def _widened(self, param: Tensor, *, every: bool) -> Tensor:
        if param.dtype not in LOW or (param.grad is None and not every):
            return param
        state = self._optimizer.state.pop(param, None) or {}
        wide = self._master(param, state.pop(MASTER, None))
        wide.grad = None if param.grad is None else param.grad.float()
        if state:
            self._optimizer.state[wide] = {key: _wide(value) for key, value in state.items()}
        return wide

    def _master(self, param: Tensor, kept: Tensor | None) -> Tensor:
        if self._chance is not None:
            return param.detach().float()
        kept = self._originals.pop(id(param), None) if kept is None else kept
        if kept is None:
            return param.detach().float()
        if self._versions.get(id(param)) == versions_of([param]):
            return kept
        return torch.where(param == kept.to(param.dtype), kept, param.float()).detach()

    def _narrow_one(self, wide: Tensor, param: Tensor, *, writes: bool) -> None:
        state: dict[str, Any] = self._optimizer.state.pop(wide, None) or {}
        wide.grad = None
        if self._chance is not None:
            state = {key: self._rounded(key, value, param) for key, value in state.items() if key != MASTER}
            if writes:
                param.copy_(self._chance.rounded(wide, param.dtype))
        elif writes:
            state[MASTER] = wide
            param.copy_(wide)
            self._versions[id(param)] = versions_of([param])
        if state:
            self._optimizer.state[param] = state

    def _rounded(self, key: str, value: Any, param: Tensor) -> Any:
        """State of an element each, as it is kept; counts and factors stay."""
        is_ours = isinstance(value, Tensor) and value.dtype is torch.float32 and value.shape == param.shape
        if self._chance is None or not is_ours or key == "step":
            return value
        return self._chance.rounded(value, param.dtype)

    def _forget(self) -> None:
        """Leave state as an ordinary optimizer has it."""
        self._versions.clear()
        for param, state in list(self._optimizer.state.items()):
            if param.dtype not in LOW:
                continue
            state.pop(MASTER, None)
            if not state:
                del self._optimizer.state[param]
            for key, value in state.items():
                if key != "step" and isinstance(value, Tensor) and value.dtype is torch.float32:
                    state[key] = value.to(param.dtype)


def keep_all(optimizers: Sequence[Optimizer], updates: Updates) -> Undo:
    """``keep_small_updates`` for each, or for none if one cannot bear it."""
    with ExitStack() as stack:
        for one in optimizers:
            stack.callback(keep_small_updates(one, updates))
        return stack.pop_all().close
    raise AssertionError  # no ExitStack swallows an exception that nothing in it swallows


def keeper_of(optimizer: Optimizer) -> SmallUpdates | None:
    """What keeps the optimizer's small updates; None where nothing does."""
    return getattr(vars(optimizer).get("load_state_dict"), "keeper", None)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in LOW else value

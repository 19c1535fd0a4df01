"""Keeps the parameters of a script that knows nothing of it in a format below fp32, and their small updates."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ampwise._base.errors import AmpwiseError, CannotRunError
from ampwise.interpose.module_call import MODULE_CALL
from ampwise.interpose.optimizer_step import on_optimizer
from ampwise.interpose.seam import intercept
from ampwise.plan.plan import Plan, Updates
from ampwise.runner.script import RefusedRun
from ampwise.runtime.casts.cast_values import DTYPES
from ampwise.runtime.casts.small_updates import SmallUpdates, keeper_of


class LowParameters:
    """Casts each model's parameters before its first forward; optimizers hold the same parameters on.

    Layers with running statistics (BatchNorm) keep theirs in fp32: the statistics are, and torch wants both alike.

    Args:
        plan: whose ``parameters`` and ``updates``.
    """

    def __init__(self, plan: Plan) -> None:
        self._dtype = DTYPES[plan.parameters]
        self._updates = plan.updates
        self._known: WeakSet[nn.Module] = WeakSet()
        self._cast: dict[int, Tensor] = {}
        self._originals: dict[int, Tensor] = {}
        self._stack = ExitStack()

    def start(self) -> None:
        """From now on, until ``stop``."""
        self._stack.callback(self._widen)
        self._stack.callback(intercept(MODULE_CALL, self._around_call))
        if self._updates is not Updates.NEAREST:
            self._stack.callback(on_optimizer(self._keep))

    def stop(self) -> None:
        """Give the parameters back in fp32. May be called more than once."""
        self._stack.close()

    def has_cast(self, param: Tensor) -> bool:
        """Whether ``param`` is in the plan's format by this, and not by the script."""
        return id(param) in self._cast

    def _around_call(self, proceed: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        if module not in self._known:
            self._known.update(module.modules())
            self._cast_model(module)
        return proceed(module, *args, **kwargs)

    def _keep(self, optimizer: Any) -> None:
        if keeper_of(optimizer) is not None:
            return  # a further group of it
        try:
            keeper = SmallUpdates(optimizer, self._updates, originals=self._originals)
        except AmpwiseError as error:
            raise RefusedRun(error) from error
        self._stack.callback(keeper.start())

    def _cast_model(self, model: nn.Module) -> None:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            raise RefusedRun(
                CannotRunError(
                    f"the plan's parameters are {self._dtype}, but DistributedDataParallel has made its buckets for "
                    'the model as it is; cast the model in the script before, or write parameters = "fp32"'
                )
            )
        for module in model.modules():
            if getattr(module, "running_mean", None) is None:
                for param in module.parameters(recurse=False):
                    if param.dtype is torch.float32:
                        self._cast_one(param)

    def _cast_one(self, param: nn.Parameter) -> None:
        if self._updates is Updates.MASTER:
            self._originals[id(param)] = param.data
        _recast(param, self._dtype)
        self._cast[id(param)] = param

    def _widen(self) -> None:
        for param in self._cast.values():
            _recast(param, torch.float32)
        self._cast.clear()
        self._originals.clear()


def _recast(param: Tensor, dtype: torch.dtype) -> None:
    grad, param.grad = param.grad, None
    param.data = param.data.to(dtype)
    if grad is not None:
        param.grad = grad.to(dtype)

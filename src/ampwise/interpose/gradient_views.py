"""Rows for the places inside a backward pass where a script looks at gradients: it shall see true ones."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ampwise.interpose.row import Row
from ampwise.interpose.seam import Undo, intercept, undo_all

_SCALED = "with a loss scale the script does not know of, it would see gradients multiplied by it"

RETAIN_GRAD = Row(
    name="torch.Tensor.retain_grad", owner="torch:Tensor", attribute="retain_grad", why=_SCALED, obstacle="retain_grad"
)
REGISTER_HOOK = Row(
    name="torch.Tensor.register_hook",
    owner="torch:Tensor",
    attribute="register_hook",
    why=_SCALED,
    obstacle="tensor_hook",
)
MODULE_HOOKS = tuple(
    Row(
        name=f"torch.nn.Module.{attribute}",
        owner="torch.nn.modules.module:Module",
        attribute=attribute,
        why=_SCALED,
        obstacle="module_hook",
    )
    for attribute in ("register_full_backward_hook", "register_full_backward_pre_hook", "register_backward_hook")
)
GLOBAL_HOOKS = tuple(
    Row(
        name=f"torch.nn.modules.module.{attribute}",
        owner="torch.nn.modules.module",
        attribute=attribute,
        why=_SCALED,
        obstacle="global_module_hook",
    )
    for attribute in ("register_module_full_backward_hook", "register_module_full_backward_pre_hook")
)

ROWS = (RETAIN_GRAD, REGISTER_HOOK, *MODULE_HOOKS, *GLOBAL_HOOKS)

Convert = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a hook is shown, and what its answer becomes."""

    shown: Convert
    answered: Convert


@dataclass(frozen=True, slots=True)
class TrueGradientHook:
    """The script's hook, shown true gradients; its answer goes on as the pass needs it. Pickles as the script's."""

    hook: Callable[..., Any]
    view: View

    def __call__(self, *args: Any) -> Any:
        """Call the script's hook."""
        answer = self.hook(*(_each(self.view.shown, one) for one in args))
        return _each(self.view.answered, answer)

    def __reduce__(self) -> Any:
        return functools.partial, (self.hook,)


def show_true_gradients(view: View) -> Undo:
    """Give hooks on tensors that are no leaves, and backward hooks on modules, true gradients."""

    def on_tensor(proceed: Callable[..., Any], tensor: Tensor, hook: Callable[..., Any], **kwargs: Any) -> Any:
        true = hook if tensor.is_leaf else TrueGradientHook(hook, view)
        return proceed(tensor, true, **kwargs)

    def on_module(proceed: Callable[..., Any], module: Any, hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return proceed(module, TrueGradientHook(hook, view), *args, **kwargs)

    def on_all(proceed: Callable[..., Any], hook: Callable[..., Any], **kwargs: Any) -> Any:
        return proceed(TrueGradientHook(hook, view), **kwargs)

    undos = [
        intercept(REGISTER_HOOK, on_tensor),
        *(intercept(row, on_module) for row in MODULE_HOOKS),
        *(intercept(row, on_all) for row in GLOBAL_HOOKS),
    ]
    return functools.partial(undo_all, undos)


def _each(convert: Convert, value: Any) -> Any:
    """``convert`` applied to a tensor or to the tensors of a tuple; everything else as it is."""
    if isinstance(value, Tensor):
        return convert(value)
    if isinstance(value, (tuple, list)):
        return tuple(_each(convert, one) for one in value)
    return value

"""Rows for optimizers: their construction, and their step, whichever class defines it."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ampwise.interpose.row import Row
from ampwise.interpose.seam import Interceptor, Undo, intercept, undo_all

STEP = Row(
    name="torch.optim.Optimizer.step",
    owner="torch.optim.optimizer:Optimizer",
    attribute="step",
    why="closures run forward and backward inside the step, the update wants no autocast, and hooks cannot skip",
    obstacle="optimizer_matmul",
    outermost=True,
    per_class=True,
)
ADD_PARAM_GROUP = Row(
    name="torch.optim.Optimizer.add_param_group",
    owner="torch.optim.optimizer:Optimizer",
    attribute="add_param_group",
    why="every optimizer passes here when it is built: says who owns a parameter and which classes to follow",
)


def around_steps(interceptor: Interceptor) -> Undo:
    """Let ``interceptor(proceed, optimizer, ...)`` around the outermost step of every optimizer, of any class.

    A class is followed from its first optimizer's construction on, or from now if it has had one.
    """
    followed: dict[type[Any], Undo] = {}

    def follow(cls: type[Any]) -> None:
        owner = next(one for one in cls.__mro__ if "step" in vars(one))
        if owner not in followed:
            followed[owner] = intercept(STEP, interceptor, owner=owner)

    def added(proceed: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        follow(type(optimizer))
        return proceed(optimizer, *args, **kwargs)

    for cls in _used_classes():
        follow(cls)
    construction = intercept(ADD_PARAM_GROUP, added)

    def undo() -> None:
        construction()
        undo_all(followed.values())

    return undo


def on_captured_steps(before: Callable[[Any], None], after: Callable[[Any], None]) -> Undo:
    """Call both around every step, those too that a function holds which was captured before anything was replaced.

    torch's learning rate schedulers keep the step of the optimizer they are built for, and so does Accelerate: what
    replaces it later is never called. torch's own hooks run inside of it. They cannot tell of a step that raises, and
    are registered only where an optimizer was there first.
    """
    if not any(True for _ in _used_classes()):
        return lambda: None
    first = register_optimizer_step_pre_hook(lambda optimizer, _args, _kwargs: before(optimizer))
    last = register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: after(optimizer))

    def undo() -> None:
        first.remove()
        last.remove()

    return undo


def on_optimizer(callback: Callable[[Any], None]) -> Undo:
    """Call ``callback(optimizer)`` after every parameter group that is added to one, the first included."""

    def added(proceed: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = proceed(optimizer, *args, **kwargs)
        callback(optimizer)
        return result

    return intercept(ADD_PARAM_GROUP, added)


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """The closure a step was given, if any."""
    closure = args[0] if args else kwargs.get("closure")
    return closure if callable(closure) else None


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Callable[..., Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The step's arguments with another closure in the place of the one given."""
    return ((closure, *args[1:]), kwargs) if args else (args, {**kwargs, "closure": closure})


def _used_classes() -> Iterator[type[Any]]:
    """Classes that have had an instance: torch marks their step."""
    return (cls for cls in _subclasses(Optimizer) if getattr(vars(cls).get("step"), "hooked", False))


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)

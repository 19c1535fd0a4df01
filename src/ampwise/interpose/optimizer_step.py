"""Rows for optimizers: their construction, and their step, whichever class defines it."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer

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

    for cls in _subclasses(Optimizer):
        # torch marks the step of a class that has had an instance
        if getattr(vars(cls).get("step"), "hooked", False):
            follow(cls)
    construction = intercept(ADD_PARAM_GROUP, added)

    def undo() -> None:
        construction()
        undo_all(followed.values())

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


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)

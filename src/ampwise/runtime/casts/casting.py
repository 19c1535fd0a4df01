"""Puts a plan into effect on a model, and takes it back."""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampwise._base.errors import CannotRunError, UsageError
from ampwise.compat.tf32 import tf32_enabled
from ampwise.interpose.cast_lists import has_cuda_lists, share_cuda_lists
from ampwise.interpose.replicate import REPLICATE
from ampwise.interpose.seam import Undo, intercept, once
from ampwise.observe.modules import unwrapped
from ampwise.plan.binding import gathered, has_place, idle_in_words
from ampwise.plan.find import AnyPlan, find_plan
from ampwise.plan.plan import Lists, Plan, Updates
from ampwise.runtime.casts.cast_forward import CastForward, cast_forward_of, is_planned
from ampwise.runtime.casts.cast_values import DTYPES, LOW
from ampwise.runtime.casts.float8 import linears_in_float8
from ampwise.runtime.casts.own_plan import announce, is_held_off
from ampwise.runtime.casts.plan_places import Bound, bind, without_effect
from ampwise.runtime.casts.small_updates import keep_all
from ampwise.runtime.hardware.placement import current_device

_MISSING = object()


def apply_plan(model: nn.Module, plan: AnyPlan, *, optimizers: Optimizer | Sequence[Optimizer] = ()) -> Undo:
    """Let ``model`` compute as ``plan`` says, whoever calls it, until the returned undo is called.

    The model's forward then needs no autocast around it, and the loss as little as it does in fp32: what the model
    gives to code outside of autocast is fp32. Parameters stay as they are; so do hooks, the names in ``state_dict``
    and the class. Works with ``torch.compile``, checkpointing, DataParallel and DDP; copies and pickles of the model
    carry the plan. In fp16, scale the loss (``ampwise.GradScaler``).

    Rules reach what runs in the forward of the modules they name. Where a module's method is called in its place, its
    format holds in the modules that the method calls, and not in what it computes between them.

    Args:
        model: DDP, DataParallel and compiled models are looked through.
        plan: what is to be computed in which format; or what names it: a file, a preset, a short form.
        optimizers: those that update the model, where the plan says how parameters below fp32 are updated: see
            ``keep_small_updates``. The model is cast before they are made.

    Returns:
        What takes the plan back. It may be called more than once, and leaves what others put over it meanwhile.

    Raises:
        UsageError: ``model`` is no module, or ``plan`` no plan nor what names one.
        PlanError: there is no such plan, it has mistakes, or two paths of a shared module are under different rules.
        CannotRunError: the model has a plan already, or torch cannot do what the plan asks for at some place.
            The model is left as it was.
    """
    if not isinstance(model, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance] # of a caller without types
        raise UsageError(f"apply_plan was given a {type(model).__name__}; give the model, a torch.nn.Module")
    plan = find_plan(plan)
    if not is_held_off(plan, device_type_of_model(model)):
        announce(plan, by="ampwise.apply_plan")
    return put_plan(model, plan, optimizers=optimizers, stacklevel=3)


def put_plan(
    model: nn.Module, plan: Plan, *, optimizers: Optimizer | Sequence[Optimizer] = (), stacklevel: int = 2
) -> Undo:
    """``apply_plan`` for those who say themselves that they govern the precision.

    Raises:
        PlanError: as ``apply_plan``.
        CannotRunError: as ``apply_plan``.
    """
    model = unwrapped(model)
    check_free(model)
    owners = (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)
    check_kept(model, plan)
    if plan.updates is not Updates.NEAREST and not owners:
        raise CannotRunError(
            f'updates = "{plan.updates}" is for the optimizer to do; name it too: '
            "apply_plan(model, plan, optimizers=optimizer)"
        )
    with ExitStack() as stack:
        stack.callback(keep_all(owners, plan.updates))
        bound = bind(model, plan)
        device_type = device_type_of_model(model)
        if is_held_off(plan, device_type):
            return once(stack.pop_all().close)
        if plan.default == "tf32":
            stack.enter_context(tf32_enabled(on=True))
        if is_low(bound):
            stack.callback(follow_lists(plan, device_type))
        if bound.float8:
            stack.callback(linears_in_float8(model, bound.float8))
            bound = bind(model, plan)  # the layers that are there now
        put(bound, device_type=device_type, stack=stack, outermost=model)
        for sentence in idle_rules(plan, bound):
            warnings.warn(f"plan: {sentence}", stacklevel=stacklevel)
        return once(stack.pop_all().close)
    raise AssertionError  # no ExitStack swallows an exception that nothing in it swallows


@contextmanager
def plan_in_effect(model: nn.Module, plan: AnyPlan) -> Generator[None]:
    """``apply_plan`` for a block of code, such as an evaluation in another precision.

    Enter it around a loop, not in it: each time, compiled code is checked anew and may be compiled again.

    Raises:
        PlanError: as ``apply_plan``.
        CannotRunError: as ``apply_plan``.
    """
    undo = apply_plan(model, plan)
    try:
        yield
    finally:
        undo()


def put(
    bound: Bound,
    *,
    device_type: str,
    stack: ExitStack,
    outermost: nn.Module | None = None,
    kind: type[CastForward] = CastForward,
) -> None:
    """Replace the forward of each place, until ``stack`` is closed.

    Args:
        bound: what each place gets.
        device_type: whose autocast, where the arguments of a call do not tell.
        stack: takes it all back.
        outermost: the module in whose forward casts of weights may be kept.
        kind: what takes the place of a forward.
    """
    for place in bound.places:
        forward = kind(
            place.module.forward,
            region=place.region,
            table=place.table,
            device_type=device_type,
            is_outermost=place.module is outermost,
        )
        stack.callback(_replace_forward(place.module, forward))
    stack.callback(intercept(REPLICATE, rebound))


def check_free(model: nn.Module) -> None:
    """Refuse a model that a plan is in effect on.

    Raises:
        CannotRunError: one is.
    """
    for path, module in model.named_modules():
        if is_planned(module):
            raise CannotRunError(
                f'a plan is in effect on this model already (at "{path or "the model itself"}"); '
                "call the undo that apply_plan returned, or leave its autocast region, then apply the other plan"
            )


def check_kept(model: nn.Module, plan: Plan) -> None:
    """Refuse a plan for parameters in another format than the model has.

    Raises:
        CannotRunError: it is one.
    """
    dtype = DTYPES.get(plan.parameters)
    others = [(name, one.dtype) for name, one in model.named_parameters() if dtype in LOW and one.dtype is not dtype]
    if others:
        name, found = others[0]
        raise CannotRunError(
            f'parameters = "{plan.parameters}": "{name}" is {str(found).removeprefix("torch.")}; '
            f"cast the model, before its optimizer is made: model.to({dtype})"
        )


def is_low(bound: Bound) -> bool:
    """Whether autocast is on anywhere in the model by the plan."""
    return any(place.region is not None and place.region.compute in LOW for place in bound.places)


def follow_lists(plan: Plan, device_type: str) -> Undo:
    """Let autocast follow the cast lists that the plan asks for, in the whole process, until the undo is called.

    Raises:
        CannotRunError: somebody else's plan asked for the other lists.
    """
    if plan.lists is Lists.CUDA:
        return share_cuda_lists(device_type)
    if has_cuda_lists(device_type):
        raise CannotRunError(
            f"the plan asks for torch's own cast lists, but the whole process uses CUDA's for {device_type}; "
            'undo the plan that uses them, or write lists = "cuda" in this one'
        )
    return lambda: None


def idle_rules(plan: Plan, bound: Bound) -> Iterator[str]:
    """What the plan does not do on the model, though it says so."""
    modules = {"": bound.paths}
    idle = without_effect(plan, modules, matches=bound.matches, uncalled=bound.uncalled)
    yield from gathered(idle, bound.paths)
    if not has_place(plan, modules):  # else a preset's other rules are for other models
        others = idle_in_words(plan, modules)
        yield from () if others is None else (f"no module for {others}",)


def _replace_forward(module: nn.Module, forward: CastForward) -> Undo:
    before = vars(module).get("forward", _MISSING)
    try:
        module.forward = forward
    except (AttributeError, TypeError) as error:
        raise CannotRunError(f"{type(module).__name__} does not let its forward be replaced: {error}") from error

    def undo() -> None:
        if vars(module).get("forward") is not forward:
            forward.release()  # somebody else's forward lies over it
        elif before is _MISSING:
            del module.forward
        else:
            module.forward = before

    return undo


def rebound(proceed: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    """Let a copy that DataParallel makes of a module compute with its own weights."""
    replica = proceed(module, *args, **kwargs)
    forward = cast_forward_of(module)
    if forward is not None:
        replica.forward = forward.bound_to(replica)
    return replica


def device_type_of_model(model: nn.Module) -> str:
    """The kind of device the model is on; where it has no tensors, that of new work."""
    tensors: Iterable[torch.Tensor] = (*model.parameters(), *model.buffers())
    return next((one.device.type for one in tensors if not one.is_meta), current_device().type)

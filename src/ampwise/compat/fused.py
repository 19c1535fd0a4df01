# pyright: reportPrivateImportUsage=false
"""What ampwise knows of torch's fused optimizers: which can be fused, captured or stepped part by part."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

_FUSABLE = (Adam, AdamW, SGD, Adagrad)
_DIVISIBLE = (Adam, AdamW, SGD)
_DEVICES = ("cpu", "cuda")
_PLAIN = (Tensor, torch.nn.Parameter)


def fuse(optimizer: Optimizer) -> bool:
    """Choose torch's fused implementation where the script left the choice to torch; says whether it did.

    Not where the parameters or the state do not allow it, nor where the script replaced ``step``, as by a compiled one.
    """
    if type(optimizer) not in _FUSABLE or _has_own_step(optimizer):
        return False
    if not all(_may_fuse(group) for group in optimizer.param_groups):
        return False
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if any(param.device.type != "cpu" for param in params) and optimizer.state:
        return False  # an unfused optimizer's step counts are on the CPU, and the device's kernel wants them there
    for group in optimizer.param_groups:
        group["fused"] = True
    optimizer.defaults["fused"] = True  # of groups that are added later
    optimizer._step_supports_amp_scaling = True  # pyright: ignore[reportAttributeAccessIssue] - as its constructor does
    return True


def fits_fused(optimizer: Optimizer) -> bool:
    """Whether the fused kernels can take the optimizer's gradients and state as they are now.

    They know no sparse gradients. And on the CPU they walk through memory without looking at strides: where those of a
    gradient or of a momentum differ from the parameter's they give wrong parameters without a word.
    """
    states = optimizer.state
    for group in optimizer.param_groups:  # at every step for every parameter: loops are faster than generators
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            strides = param.stride()
            if grad.is_sparse or not (grad.stride() == strides or _is_alike(param, grad)):
                return False
            for one in states[param].values() if param in states else ():
                if isinstance(one, Tensor) and one.dim() and not (one.stride() == strides or _is_alike(param, one)):
                    return False
    return True


def is_fused_on_cpu(optimizer: Optimizer) -> bool:
    """Whether torch's own fused CPU kernel steps it, which looks at no strides."""
    groups = optimizer.param_groups
    return type(optimizer) in _FUSABLE and any(
        group.get("fused") and any(param.device.type == "cpu" for param in group["params"]) for group in groups
    )


def unfuse(optimizer: Optimizer) -> None:
    """Take ``fuse`` back."""
    for group in optimizer.param_groups:
        group["fused"] = None
    optimizer.defaults["fused"] = None
    optimizer._step_supports_amp_scaling = False  # pyright: ignore[reportAttributeAccessIssue]


def start_momenta(optimizer: Optimizer) -> None:
    """Give a fused SGD's momenta a start that bears its first step being skipped.

    torch makes them with ``empty_like`` for the kernel to fill. If the first step is skipped, as fp16's often is, the
    kernel fills nothing, and the second step goes on from what lay in memory. From zeros the first step is the same,
    bit for bit, as long as it is not dampened.
    """
    if type(optimizer) is not SGD:
        return
    for group in optimizer.param_groups:
        if not group["fused"] or not group["momentum"] or group["dampening"]:
            continue
        for param in group["params"]:
            if param.grad is not None and optimizer.state[param].get("momentum_buffer") is None:
                optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param.grad)


def make_capturable(optimizer: Optimizer, *, skips: bool) -> str | None:
    """Let a CUDA graph replay the optimizer's step; says why that cannot be, with the remedy.

    What a graph takes from the host stays as it was recorded, so the learning rate, which schedules change, goes to the
    device, and so do the step counts.

    Args:
        optimizer: its parameters are on a CUDA device.
        skips: whether a step may be skipped on the device, which only the fused kernels do.
    """
    name = type(optimizer).__name__
    is_fused = all(group.get("fused") for group in optimizer.param_groups)
    if skips and not is_fused:
        return f"{name} cannot skip a step on the device; use Adam, AdamW or SGD made with fused=True"
    if not is_fused and not all("capturable" in group for group in optimizer.param_groups):
        return f"{name} has no capturable form; use Adam, AdamW or SGD made with fused=True"
    for group in optimizer.param_groups:
        device = group["params"][0].device
        if "capturable" in group:
            group["capturable"] = True
        if not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
    for param, state in optimizer.state.items():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].to(param.device)
    # torch warns of a capturable optimizer that steps outside of a capture, as the warm-up does
    optimizer._warned_capturable_if_run_uncaptured = True
    return None


def is_divisible(optimizer: Optimizer) -> bool:
    """Whether ``rows_of`` may stand for the optimizer's own step.

    Not where it is of another class, not fused, or somebody looks at its steps by a hook.
    """
    watched = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    return (
        type(optimizer) in _DIVISIBLE
        and not any(watched)
        and not _has_own_step(optimizer)
        and all(_is_group_divisible(optimizer, group) for group in optimizer.param_groups)
    )


def mark_stepped(optimizer: Optimizer) -> None:
    """Tell the optimizer's schedulers that it stepped, as its ``step`` does."""
    optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]


def _has_own_step(optimizer: Optimizer) -> bool:
    """Whether somebody but a scheduler, which only counts, replaced this optimizer's ``step``."""
    own = vars(optimizer).get("step")
    return own is not None and not hasattr(own, "_wrapped_by_lr_sched")


def _is_alike(param: Tensor, other: Tensor) -> bool:
    """Whether equal places in memory hold equal elements: a dimension of one element may have any stride."""
    strides = zip(param.shape, param.stride(), other.stride(), strict=True)
    return all(size == 1 or mine == its for size, mine, its in strides)


def _may_fuse(group: dict[str, Any]) -> bool:
    is_left_to_torch = group.get("fused") is None and group.get("foreach") is None
    special = group.get("differentiable") or group.get("capturable") or isinstance(group["lr"], Tensor)
    special = special or group.get("dampening")  # see start_momenta
    return is_left_to_torch and not special and all(_is_plain(param) for param in group["params"])


def _is_plain(param: Tensor) -> bool:
    return type(param) in _PLAIN and param.is_floating_point() and param.device.type in _DEVICES


def _is_group_divisible(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    if not group["fused"] or isinstance(group["lr"], Tensor):
        return False
    for param in group["params"]:
        grad = param.grad
        if grad is None:
            continue
        if type(param) not in _PLAIN or type(grad) not in _PLAIN or grad.is_sparse:
            return False  # a shard's (DTensor's) norm is not that of the whole
        if grad.dtype is not torch.float32 or param.dtype is not torch.float32:
            return False
    # fused SGD is told of a whole group at once whether this is its first step
    return not group.get("momentum") or len(_momenta_known(optimizer, group)) < 2


def _momenta_known(optimizer: Optimizer, group: dict[str, Any]) -> set[bool]:
    with_gradients = [param for param in group["params"] if param.grad is not None]
    return {optimizer.state.get(param, {}).get("momentum_buffer") is not None for param in with_gradients}

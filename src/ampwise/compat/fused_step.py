# pyright: reportPrivateImportUsage=false
"""Steps torch's fused optimizers part by part, with the kernels that their own ``step`` calls."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

Row = tuple[Tensor, ...]
"""A parameter, its gradient, and its state in the kernel's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedGroup:
    """One parameter group of a fused optimizer, in the middle of a step.

    Law: ``step`` on parts that together are ``rows``, each once, gives what the optimizer's own step gives, bit
    for bit: the kernels treat every element alone.

    Attributes:
        rows: one for each parameter with a gradient.
        kernel: takes the columns of some rows, and ``grad_scale``: a 0-dim tensor that the gradients are divided by.
    """

    rows: list[Row]
    kernel: Callable[..., None]

    def step(self, rows: Iterable[Row], *, grad_scale: Tensor | None = None) -> None:
        """Step a part."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        if columns:
            self.kernel(*columns, grad_scale=grad_scale)

    def parts(self, *, num_bytes: int) -> Iterator[list[Row]]:
        """The rows in parts whose gradients together have about ``num_bytes``; large tensors are cut."""
        part: list[Row] = []
        size = 0
        for row in (piece for one in self.rows for piece in cut(one, num_bytes=num_bytes)):
            part.append(row)
            size += row[1].nbytes
            if size >= num_bytes:
                yield part
                part, size = [], 0
        if part:
            yield part


def begin_step(optimizer: Optimizer) -> list[FusedGroup]:
    """The groups of an optimizer that ``is_divisible``, its steps counted and its missing state made."""
    make = _sgd_group if isinstance(optimizer, SGD) else _adam_group
    return [make(optimizer, group) for group in optimizer.param_groups]


def cut(row: Row, *, num_bytes: int) -> Iterator[Row]:
    """A row whose tensors are long in pieces of ``num_bytes``, a multiple of the processor's vectors; else the row."""
    param = row[0]
    if param.nbytes <= num_bytes or not all(one.is_contiguous() for one in row):
        yield row
        return
    length = num_bytes // param.element_size()
    shared = param.shape
    columns = [one.view(-1).split(length) if one.shape == shared else None for one in row]
    for index in range(-(-param.numel() // length)):
        yield tuple(one if pieces is None else pieces[index] for one, pieces in zip(row, columns, strict=True))


def norms_of(grads: Iterable[Tensor]) -> Tensor:
    """The 2-norm of each tensor, in one tensor."""
    return torch.stack(torch._foreach_norm(list(grads)))


def wide_norms_of(grads: Iterable[Tensor]) -> Tensor:
    """The 2-norm of each tensor of one dtype, in one tensor of at least fp32."""
    several = list(grads)
    dtype = torch.float64 if several[0].dtype is torch.float64 else torch.float32
    return torch.stack(torch._foreach_norm(several, 2.0, dtype))


def multiply_(tensors: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply tensors of one device and dtype in place by a 0-dim tensor there."""
    torch._foreach_mul_(list(tensors), factor)


def multiply_gradients_(rows: Iterable[Row], factor: Tensor) -> None:
    """Multiply the gradients in place by a 0-dim tensor."""
    torch._foreach_mul_([row[1] for row in rows], factor)


def _adam_group(optimizer: Any, group: dict[str, Any]) -> FusedGroup:
    lists: list[list[Tensor]] = [[] for _ in range(6)]
    optimizer._init_group(group, *lists)
    params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps = lists
    if steps:
        torch._foreach_add_(steps, torch.ones(()), alpha=1.0)  # a number would be made a tensor for each of them
    beta1, beta2 = group["betas"]
    update = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    names = ("lr", "weight_decay", "eps", "amsgrad", "maximize")
    options = {"beta1": beta1, "beta2": beta2, **{name: group[name] for name in names}}

    def kernel(
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        steps: list[Tensor],
        *maxima: list[Tensor],
        grad_scale: Tensor | None,
    ) -> None:
        largest = maxima[0] if maxima else []
        update(params, grads, exp_avgs, exp_avg_sqs, largest, steps, **options, grad_scale=grad_scale, found_inf=None)

    columns = [params, grads, exp_avgs, exp_avg_sqs, steps, *([max_exp_avg_sqs] if group["amsgrad"] else [])]
    return FusedGroup(rows=list(zip(*columns, strict=True)), kernel=kernel)


def _sgd_group(optimizer: Any, group: dict[str, Any]) -> FusedGroup:
    params: list[Tensor] = []
    grads: list[Tensor] = []
    momenta: list[Tensor | None] = []
    optimizer._init_group(group, params, grads, momenta)
    is_first_step = bool(group["momentum"]) and all(one is None for one in momenta)
    if is_first_step:
        for param, grad in zip(params, grads, strict=True):
            optimizer.state[param]["momentum_buffer"] = torch.empty_like(grad)
    names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
    options = {"is_first_step": is_first_step, **{name: group[name] for name in names}}

    def kernel(params: list[Tensor], grads: list[Tensor], *momenta: list[Tensor], grad_scale: Tensor | None) -> None:
        buffers = momenta[0] if momenta else []
        torch._fused_sgd_(params, grads, buffers, **options, grad_scale=grad_scale, found_inf=None)

    columns = [params, grads]
    if group["momentum"]:
        columns.append([optimizer.state[param]["momentum_buffer"] for param in params])
    return FusedGroup(rows=list(zip(*columns, strict=True)), kernel=kernel)

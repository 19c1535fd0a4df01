"""Finds an optimizer's gradients, in the form in which they can be unscaled and checked."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampwise.compat.distributed import local_of, reduced
from ampwise.compat.fused_step import multiply_
from ampwise.compat.optim import name_of, parameters_of
from ampwise.compat.scaler import sparse_values

Groups = dict[torch.device, dict[torch.dtype, list[Tensor]]]


def grouped_gradients(optimizer: Optimizer, *, allow_fp16: bool) -> Groups:
    """The gradients by device and dtype, as real dense tensors that share their storage.

    Of a sharded gradient (DTensor) it is the part that this rank holds. A sparse gradient gives its values, a complex
    one its real and imaginary parts. fp16 sparse gradients are coalesced first: the sum of duplicates may overflow.

    Raises:
        ValueError: a gradient is fp16 and ``allow_fp16`` is not set.
    """
    groups: Groups = defaultdict(lambda: defaultdict(list))
    fp16: list[Tensor] = []
    for param in parameters_of(optimizer):
        if param.grad is None:
            continue
        if param.grad.dtype is torch.float16:
            fp16.append(param)
        grad = _dense_and_real(param)
        groups[grad.device][grad.dtype].append(grad)
    if fp16 and not allow_fp16:
        raise ValueError(_fp16_refusal(optimizer, fp16))
    return groups


def first_non_finite(named_parameters: Mapping[str, Tensor], *, limit: int = 5) -> list[str]:
    """The names of the first parameters whose gradient holds an infinity or a NaN. Waits for the device."""

    def names() -> Iterator[str]:
        for name, param in named_parameters.items():
            if param.grad is None:
                continue
            grad = local_of(param.grad)  # asking all ranks would hang: only this one may look
            values = sparse_values(grad) if grad.is_sparse else grad
            if not bool(values.isfinite().all()):
                yield name

    return [name for name, _ in zip(names(), range(limit), strict=False)]


def local_gradient(param: Tensor) -> Tensor | None:
    """The gradient, or the part of it that this rank holds, sharing its memory; None where there is none.

    A DTensor that still is to be summed over ranks is summed first: every rank must call this.
    """
    if param.grad is None:
        return None
    grad = reduced(param.grad)
    if grad is not param.grad:
        param.grad = grad
    return local_of(grad)


@torch.no_grad()
def clip_by_norm_(params: Iterable[Tensor], norm: Tensor, *, max_norm: float) -> None:
    """Multiply every gradient by what brings their common ``norm`` to ``max_norm``, as torch does; none grows."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for param in params:
        grad = local_gradient(param)
        if grad is not None:
            groups[grad.device, grad.dtype].append(grad)
    for (device, _), grads in groups.items():
        multiply_(grads, factor.to(device))


def _dense_and_real(param: Tensor) -> Tensor:
    grad = local_gradient(param)
    assert grad is not None  # noqa: S101 - narrows the type; the caller has looked
    if grad.is_sparse:
        if grad.dtype is torch.float16:
            grad = param.grad = grad.coalesce()
        grad = sparse_values(grad)
    elif grad.is_conj() or grad.is_neg():
        grad = param.grad = grad.resolve_conj().resolve_neg()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def _fp16_refusal(optimizer: Optimizer, params: list[Tensor]) -> str:
    shown = ", ".join(name_of(optimizer, param) for param in params[:5])
    more = f" and {len(params) - 5} more" if len(params) > 5 else ""
    return (
        f"Attempting to unscale FP16 gradients. These parameters are float16: {shown}{more}. Loss scaling needs fp32 "
        "parameters: keep the model in fp32 (do not call .half()), cast the parameters you train with param.data = "
        "param.data.float(), and let autocast choose fp16 for the operators."
    )

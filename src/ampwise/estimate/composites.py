"""Operators of which torch chooses another implementation for CUDA than for the device C++ takes ours for.

Each is a kernel under CUDA's keys that makes CUDA's choice; what it calls are torch's own operators.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 # torch's own habit
from torch import Tensor

from ampwise.compat.dispatch import find_overload, put_composites
from ampwise.compat.imaginary import is_imaginary
from ampwise.estimate.notes import Notes
from ampwise.estimate.recurrent import recurrent_composites
from ampwise.estimate.values import set_value
from ampwise.interpose.seam import Undo

aten = torch.ops.aten
_FLASH: Final[Any] = find_overload("_scaled_dot_product_flash_attention")
_EFFICIENT: Final[Any] = find_overload("_scaled_dot_product_efficient_attention")
_PLAIN: Final[Any] = find_overload("_scaled_dot_product_attention_math")
_CTC: Final[Any] = find_overload("_ctc_loss.Tensor")
_FLASH_HEAD: Final = 256
"""Largest head dimension of the flash kernel."""
_HALF: Final = frozenset({torch.float16, torch.bfloat16})


def choose_as_cuda_does(compute_capability: tuple[int, int] | None, notes: Notes) -> Undo:
    """Let attention, dropout and tests of finiteness be what they are on CUDA until the returned undo is called.

    Args:
        compute_capability: Of the GPU; None for one that is not NVIDIA's.
        notes: Takes note of the attention kernel that was chosen.
    """
    has_flash = compute_capability is None or compute_capability >= (8, 0)
    return put_composites(
        {
            "scaled_dot_product_attention": _attention(notes, has_flash=has_flash),
            "dropout": _dropout,
            "ctc_loss.Tensor": _ctc_loss,
            "isfinite": _finite(value=True),
            "isnan": _finite(value=False),
            "isinf": _finite(value=False),
            **recurrent_composites(notes),
        },
        device_type="cuda",
    )


def _attention(notes: Notes, *, has_flash: bool) -> Callable[..., Tensor]:
    """As ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` chooses: flash, memory-efficient, else plain."""

    def attention(  # torch's own signature
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: FBT001, FBT002
    ) -> Tensor:
        can_fuse = query.dim() == 4 and query.dtype in {*_HALF, torch.float32}
        factor = scale if scale is not None else query.size(-1) ** -0.5
        is_flash = can_fuse and has_flash and attn_mask is None and query.dtype in _HALF
        if is_flash and query.size(-1) <= _FLASH_HEAD and torch.backends.cuda.flash_sdp_enabled():
            notes.assume("attention by the flash kernel")
            return _flash(query, key, value, dropout_p, factor, is_causal=is_causal)
        if can_fuse and not enable_gqa and torch.backends.cuda.mem_efficient_sdp_enabled():
            notes.assume("attention by the memory-efficient kernel")
            bias = None if attn_mask is None else _bias(attn_mask, query, key)
            needs_sums = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
            return _EFFICIENT(query, key, value, bias, needs_sums, dropout_p, is_causal, scale=factor)[0]
        notes.assume("attention by plain products")
        return _PLAIN(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]

    return attention


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, scale: float, *, is_causal: bool) -> Tensor:
    """The kernel takes heads of a multiple of 8."""
    size = query.size(-1)
    padded = [F.pad(one, (0, -size % 8)) if size % 8 else one for one in (query, key, value)]
    made = _FLASH(*padded, dropout_p, is_causal, False, scale=scale)[0]
    return made[..., :size] if size % 8 else made


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask as what is added to the scores, its rows laid out as the kernel needs them, expanded to every head."""
    if mask.dtype is torch.bool:
        added = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    else:
        added = mask
    length = added.size(-1)
    if length % 16:
        added = F.pad(added, (0, 16 - length % 16))[..., :length]
    return added.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _dropout(tensor: Tensor, p: float, train: bool) -> Tensor:  # noqa: FBT001 # torch's own signature
    if not train or p == 0 or tensor.numel() == 0:
        return tensor
    if p == 1:
        return tensor.mul(torch.zeros((), dtype=tensor.dtype, device=tensor.device))
    return aten.native_dropout(tensor, p, train)[0]


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,  # noqa: FBT001, FBT002 # torch's own signature
) -> Tensor:
    """Lengths on the host are read there; torch's own kernel does not look while a dispatch mode is on."""
    if not any(is_imaginary(one) for one in (input_lengths, target_lengths)):
        lengths = input_lengths.tolist(), target_lengths.tolist()
        return aten.ctc_loss.IntList(log_probs, targets, *lengths, blank, reduction, zero_infinity)
    on_gpu = [one.to(log_probs.device) for one in (input_lengths, target_lengths)]
    loss: Tensor = _CTC(log_probs, targets, *on_gpu, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == float("inf"), torch.zeros_like(loss), loss)
    match reduction:
        case 0:
            return loss
        case 1:
            return (loss / on_gpu[1].clamp_min(1).to(loss.dtype)).mean()
        case _:
            return loss.sum()


def _finite(*, value: bool) -> Callable[[Tensor], Tensor]:
    """Whether numbers nobody knows are finite: a script's own check should let it go on."""

    def answer(tensor: Tensor) -> Tensor:
        made = torch.empty(tensor.shape, dtype=torch.bool, device=tensor.device)
        if is_imaginary(made):
            set_value(made, torch.full(tensor.shape, value))
        return made

    return answer

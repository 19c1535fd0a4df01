"""What the host asks of the imaginary GPU, and operators whose result's size depends on numbers.

Where the numbers are known (``values``) the answer is the true one. Else a number is 0, a mask counts as all true, and
that is noted: the run goes on with the largest result there can be.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from ampwise.compat.dispatch import find_overload
from ampwise.compat.imaginary import GPU, Place, is_imaginary, place_of
from ampwise.estimate.dataless import LARGE_BYTES, zeros_without_data
from ampwise.estimate.notes import Notes
from ampwise.estimate.values import set_value, value_of

aten = torch.ops.aten
_UNIQUE: Final[Any] = find_overload("_unique2")
Answer = Callable[[tuple[Any, ...], dict[str, Any], Notes], Any]


class Unknown(Exception):  # noqa: N818 # no error: the operator is then run as any other
    """There is nothing special about this call."""


def _item(args: tuple[Any, ...], _: dict[str, Any], notes: Notes) -> Any:
    value = value_of(args[0])
    if value is not None:
        return value.item()
    notes.assume("a number read from the GPU is taken to be 0")
    return torch.zeros((), dtype=args[0].dtype).item()


def _to_copy(args: tuple[Any, ...], kwargs: dict[str, Any], notes: Notes) -> Tensor:
    device = kwargs.get("device")
    if not is_imaginary(args[0]) or device is None or torch.device(device).type != "cpu":
        raise Unknown
    value = value_of(args[0])
    dtype = kwargs.get("dtype") or args[0].dtype
    if value is not None:
        return value.to(dtype=dtype, copy=True)
    if args[0].numel() * dtype.itemsize >= LARGE_BYTES:
        return zeros_without_data(args[0], dtype)
    notes.assume("numbers copied from the GPU are taken to be 0")
    return torch.zeros(args[0].shape, dtype=dtype)


def _copy(args: tuple[Any, ...], _: dict[str, Any], notes: Notes) -> Tensor:
    target, source = args[0], args[1]
    if place_of(target) is Place.HOST:
        return target
    if not is_imaginary(target):
        value = value_of(source)
        if value is not None:
            return target.copy_(value)
        notes.assume("numbers copied from the GPU are taken to be 0")
        return target.zero_()
    value = value_of(source)
    set_value(target, None if value is None else value.to(target.dtype).expand(target.shape).clone())
    raise Unknown


def _equal(args: tuple[Any, ...], _: dict[str, Any], notes: Notes) -> bool:
    first, second = value_of(args[0]), value_of(args[1])
    if first is not None and second is not None:
        return torch.equal(first, second)
    notes.assume("two tensors on the GPU are taken to be equal")
    return True


def _allclose(_: tuple[Any, ...], _kwargs: dict[str, Any], notes: Notes) -> bool:
    notes.assume("two tensors on the GPU are taken to be close to each other")
    return True


def _nonzero(args: tuple[Any, ...], _: dict[str, Any], notes: Notes) -> Tensor:
    return _indices(args[0], notes)


def _masked_select(args: tuple[Any, ...], _: dict[str, Any], notes: Notes) -> Tensor:
    tensor, mask = torch.broadcast_tensors(args[0], args[1])
    return tensor.new_empty(len(_indices(mask, notes)))


def _index(args: tuple[Any, ...], _: dict[str, Any], notes: Notes) -> Tensor:
    indices = list(args[1])
    if not any(isinstance(one, Tensor) and one.dtype in {torch.bool, torch.uint8} for one in indices):
        raise Unknown
    plain: list[Any] = []
    for one in indices:
        is_mask = isinstance(one, Tensor) and one.dtype in {torch.bool, torch.uint8}
        plain += _indices(one, notes).unbind(1) if is_mask else [one]
    return aten.index.Tensor(args[0], plain)


def _unique(args: tuple[Any, ...], kwargs: dict[str, Any], notes: Notes) -> Any:
    value = value_of(args[0])
    if value is None:
        notes.assume("all numbers of a tensor on the GPU are taken to be different")
        value = torch.arange(args[0].numel()).reshape(args[0].shape)
    numbers, *places = _UNIQUE(value, *args[1:], **kwargs)
    return _moved(numbers.to(args[0].dtype), args[0].dtype), *(_moved(one, torch.long) for one in places)


def _repeat_interleave(args: tuple[Any, ...], kwargs: dict[str, Any], notes: Notes) -> Tensor:
    if kwargs.get("output_size") is not None:
        raise Unknown
    value = value_of(args[0])
    if value is None:
        notes.assume("each number of a tensor on the GPU is taken to be repeated once")
        value = torch.ones(args[0].shape, dtype=torch.long)
    return _moved(aten.repeat_interleave.Tensor(value), torch.long)


def _bincount(args: tuple[Any, ...], kwargs: dict[str, Any], notes: Notes) -> Tensor:
    tensor: Tensor = args[0]
    value = value_of(tensor)
    least: int = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    if value is None:
        notes.assume("the numbers counted by bincount are taken to be below its minlength")
    dtype = torch.long if len(args) < 2 or args[1] is None else torch.float64
    length = least if value is None or value.numel() == 0 else max(least, int(value.max()) + 1)
    return tensor.new_empty((length,), dtype=dtype)


def _pack(args: tuple[Any, ...], _: dict[str, Any], _notes: Notes) -> tuple[Tensor, Tensor]:
    """Sequences laid end to end: how many are left at each step is known, since their lengths lie on the host."""
    tensor: Tensor = args[0]
    lengths: list[int] = args[1].tolist()
    left = [sum(length > step for length in lengths) for step in range(max(lengths))]
    return tensor.new_empty((sum(lengths), *tensor.shape[2:])), torch.tensor(left)


def _indices(mask: Tensor, notes: Notes) -> Tensor:
    """``nonzero`` on the GPU, with its numbers where they are known."""
    value = value_of(mask)
    if value is None:
        notes.assume("a mask on the GPU is taken to be all true")
        return torch.zeros(mask.numel(), mask.dim(), dtype=torch.long, device=mask.device)
    return _moved(value.nonzero(), torch.long)


def _moved(value: Tensor, dtype: torch.dtype) -> Tensor:
    """On the GPU, with its numbers."""
    made = torch.empty(value.shape, dtype=value.dtype if value.dtype is torch.long else dtype, device=GPU)
    set_value(made, value)
    return made


HOST_OPERATORS: Final[Mapping[Any, Answer]] = MappingProxyType(
    {
        find_overload("_local_scalar_dense"): _item,
        find_overload("_to_copy"): _to_copy,
        aten.copy_.default: _copy,
        aten.equal.default: _equal,
        aten.allclose.default: _allclose,
        aten.nonzero.default: _nonzero,
        aten.masked_select.default: _masked_select,
        aten.index.Tensor: _index,
        _UNIQUE: _unique,
        aten.repeat_interleave.Tensor: _repeat_interleave,
        aten.bincount.default: _bincount,
        find_overload("_pack_padded_sequence"): _pack,
    }
)
"""By operator: the answer to the host, or a result of the right size."""

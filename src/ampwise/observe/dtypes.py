"""torch's dtypes by the names that formats bear, and the tensors among an operator's arguments."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

_NAMES: Final = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}


def dtype_name(dtype: torch.dtype) -> str:
    """The format's name: ``bf16``; torch's own where it has none."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def dtype_names(tensors: Iterable[torch.Tensor]) -> tuple[str, ...]:
    """The formats of the floating-point tensors, each once, in their order."""
    return tuple(dict.fromkeys(dtype_name(tensor.dtype) for tensor in tensors if tensor.dtype.is_floating_point))


def tensors_in(*values: Any) -> Iterator[torch.Tensor]:
    """The tensors among ``values``, and in lists and tuples among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(*value)


def leaf_tensors(nested: Any) -> Iterator[torch.Tensor]:
    """The tensors in lists, tuples, mappings and objects with fields, such as a model's output of any kind."""
    match nested:
        case torch.Tensor():
            yield nested
        case list() | tuple():
            for one in nested:
                yield from leaf_tensors(one)
        case dict():
            yield from leaf_tensors(list(nested.values()))
        case None | str() | int() | float() | torch.nn.Module() | type():
            return
        case _:
            fields = getattr(nested, "__dataclass_fields__", None)
            if fields is not None:
                yield from leaf_tensors([getattr(nested, name, None) for name in fields])
            else:
                yield from tensors_in(nested)

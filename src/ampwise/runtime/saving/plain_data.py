"""Data that ``torch.load(weights_only=True)`` reads back: what is none is found, what is has a checksum."""

import ctypes
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_SCALARS = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Size)
_MAPPINGS = (dict, OrderedDict, Counter)
_SEQUENCES = (list, tuple)
_TENSORS = (Tensor, torch.nn.Parameter)


def strangers(value: Any, place: str) -> Iterator[str]:
    """Every part of ``value`` that is no plain data, by its place. Types are taken exactly: a numpy float is none."""
    kind = type(value)
    if kind in _MAPPINGS:
        for key, one in value.items():
            yield from strangers(key, f"a key of {place}")
            yield from strangers(one, f"{place}[{key!r}]")
    elif kind in _SEQUENCES:
        for index, one in enumerate(value):
            yield from strangers(one, f"{place}[{index}]")
    elif kind not in _SCALARS and not (kind in _TENSORS and value.layout is torch.strided):
        yield f"{place} is a {kind.__module__}.{kind.__qualname__}"


def checksum(value: Any) -> str:
    """A digest of plain data: types, structure, and every bit of every tensor. Copies tensors from their device."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in _pieces(value):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)} ".encode()
        yield from _bits(value)
    elif isinstance(value, _MAPPINGS):
        yield f"mapping {len(value)} ".encode()
        for key, one in value.items():
            yield from _pieces(key)
            yield from _pieces(one)
    elif type(value) in _SEQUENCES:
        yield f"{type(value).__name__} {len(value)} ".encode()
        for one in value:
            yield from _pieces(one)
    else:
        yield f"{type(value).__name__} {value!r} ".encode()


def _bits(tensor: Tensor) -> Iterator[Any]:
    dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if dense.numel():
        yield (ctypes.c_char * dense.nbytes).from_address(dense.data_ptr())

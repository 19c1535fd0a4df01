"""Calls of a script that would reach for a real GPU, overwrite its files or leave eager mode."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ampwise.compat.imaginary import GPU
from ampwise.interpose.imaginary_tensor import is_gpu
from ampwise.interpose.stand_in import StandIn


def stand_in_for_scripts_calls(assume: Callable[[str], None]) -> Iterator[StandIn]:
    """Stand-ins for ``torch.save``, ``torch.load``, ``torch.compile`` and cuDNN's flat weights.

    Args:
        assume: Told of what is taken for something else.
    """
    yield StandIn(owner="torch", attribute="save", make=lambda _: _nothing)
    yield StandIn(owner="torch", attribute="load", make=_load)
    yield StandIn(owner="torch", attribute="compile", make=lambda _: _compiler(assume))
    yield StandIn(owner="torch.nn:Module", attribute="compile", make=lambda _: _compiler(assume, gives_nothing=True))
    # nothing is compiled, and forgetting it would import all of the compiler
    yield StandIn(owner="torch.compiler", attribute="reset", make=lambda _: _nothing)
    # it asks cuDNN, and warns where there is none; weights that lie apart take as many bytes
    yield StandIn(owner="torch.nn:RNNBase", attribute="flatten_parameters", make=lambda _: _nothing)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: an estimate's checkpoint is worth nothing, and must not overwrite another."""


def _compiler(assume: Callable[[str], None], *, gives_nothing: bool = False) -> Callable[..., Any]:
    def compile_(model: Any = None, *_: Any, **__: Any) -> Any:
        assume("torch.compile is left out: the step is as in eager mode, of which a compiled one mostly takes less")
        if gives_nothing:
            return None
        return _itself if model is None else model

    return compile_


def _itself(function: Any) -> Any:
    return function


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.load`` on the host; what is to go to the GPU is moved there."""

    def load(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        saved_on: set[str] = set()

        def to_host(storage: Any, location: str) -> Any:
            saved_on.add(location.partition(":")[0])
            return storage

        is_elsewhere = map_location is not None and not is_gpu(map_location)
        is_asked_of_each = callable(map_location)
        if is_elsewhere and not is_asked_of_each:
            return original(file, map_location, *args, **kwargs)
        loaded = original(file, to_host, *args, **kwargs)
        goes = is_gpu(map_location) if map_location is not None else "cuda" in saved_on
        return _moved(loaded) if goes else loaded

    return load


def _moved(loaded: Any) -> Any:
    """The same, in the containers a checkpoint is made of, on the GPU."""
    if isinstance(loaded, torch.nn.Module):
        return loaded.to(GPU)
    if isinstance(loaded, Tensor):
        return loaded.to(GPU)
    if isinstance(loaded, dict):
        for key in loaded:
            loaded[key] = _moved(loaded[key])
        return loaded
    return type(loaded)(_moved(one) for one in loaded) if type(loaded) in {list, tuple} else loaded

"""Notes what models are given that is not finite already, so that no operator is blamed for it."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ampwise.instruments.origins import is_finite, operand
from ampwise.observe.dtypes import leaf_tensors
from ampwise.observe.frames import user_line
from ampwise.observe.modules import ModuleNames
from ampwise.records.nonfinite import BadInput

_MAX_INPUTS = 16


class BadInputs:
    """Infinities and NaN among the arguments of models, and in parameters and buffers before a model's first call.

    An argument that holds -inf and no other is a mask, and none of them.

    Args:
        names: Of the modules.
    """

    def __init__(self, names: ModuleNames) -> None:
        self._names = names
        self._found: dict[tuple[str, str], BadInput] = {}

    def see_arguments(self, step: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at what a model is about to be called with. Waits for the device."""
        for name, value in _named(args, kwargs):
            for tensor in leaf_tensors(value):
                if not is_finite(tensor) and not _is_mask(tensor):
                    self._add(step, module, name, tensor, is_parameter=False)

    def see_state(self, step: int, module: nn.Module) -> None:
        """Look at a model's parameters and buffers. Waits for the device."""
        for owner in module.modules():
            held = (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False))
            for name, tensor in held:
                if not is_finite(tensor) and not _is_mask(tensor):
                    self._add(step, owner, name, tensor, is_parameter=True)

    def record(self) -> tuple[BadInput, ...]:
        """What was found, the first first."""
        return tuple(self._found.values())

    def _add(self, step: int, module: nn.Module, name: str, tensor: torch.Tensor, *, is_parameter: bool) -> None:
        found = self._names.name_of(module)
        path = "" if found is None else found.path
        if len(self._found) < _MAX_INPUTS and (path, name) not in self._found:
            line = None if is_parameter else user_line()
            self._found[path, name] = BadInput(
                step=step,
                module=path,
                name=name,
                is_parameter=is_parameter,
                value=operand(tensor),
                file=None if line is None else line.shown_file,
                line=None if line is None else line.line,
            )


class BadBuffers:
    """The buffers of models that are not finite, and which of them were so when their model was first called.

    Args:
        names: Of the modules.
    """

    def __init__(self, names: ModuleNames) -> None:
        self._names = names
        self._met: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._before: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()

    def see_model(self, model: nn.Module) -> None:
        """A model is called; at the first time its buffers are looked at. Waits for the device."""
        if model not in self._met:
            self._met.add(model)
            for owner, name in _bad_buffers(model):
                self._before.setdefault(owner, set()).add(name)

    def paths(self, models: Iterable[nn.Module]) -> tuple[str, ...]:
        """The buffers of ``models`` that are not finite and no masks. Waits for the device."""
        return tuple(self._path(owner, name) for model in models for owner, name in _bad_buffers(model))

    def paths_before(self) -> tuple[str, ...]:
        """Those that were so from the start."""
        return tuple(self._path(owner, name) for owner, names in self._before.items() for name in sorted(names))

    def _path(self, owner: nn.Module, name: str) -> str:
        found = self._names.name_of(owner)
        return f"{found.path}.{name}" if found is not None and found.path else name


def _bad_buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for owner in model.modules():
        for name, tensor in owner.named_buffers(recurse=False):
            if not is_finite(tensor) and not _is_mask(tensor):
                yield owner, name


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"argument {place}", value) for place, value in enumerate(args))
    yield from kwargs.items()


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether -inf is all that is not finite in it."""
    values = tensor.detach()
    return not bool(values.isnan().any()) and not bool((values == torch.inf).any())

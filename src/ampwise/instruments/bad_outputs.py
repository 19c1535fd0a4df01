"""Notes NaN that models give in evaluations, whose loop no loss, gradient or weight tells of."""

from typing import Any

import torch
from torch import nn

from ampwise.instruments.origins import is_finite, operand
from ampwise.observe.dtypes import leaf_tensors
from ampwise.observe.frames import user_line
from ampwise.observe.modules import ModuleNames
from ampwise.records.nonfinite import BadOutput


class BadOutputs:
    """NaN among what outermost models gave without gradients, of finite arguments; the first of each model.

    Infinities are none: masked scores and limits are infinite on purpose.

    Args:
        names: Of the modules.
    """

    def __init__(self, names: ModuleNames) -> None:
        self._names = names
        self._found: dict[str, BadOutput] = {}
        self._is_given_bad = False

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A model is about to be called. Waits for the device."""
        self._is_given_bad = not all(map(is_finite, leaf_tensors((*args, *kwargs.values()))))

    def end(self, step: int, module: nn.Module, output: Any) -> None:
        """The model has returned. Waits for the device."""
        if self._is_given_bad:
            return
        bad = next((one for one in leaf_tensors(output) if not is_finite(one) and _has_nan(one)), None)
        found = self._names.name_of(module)
        path = "" if found is None else found.path
        if bad is not None and path not in self._found:
            line = user_line()
            self._found[path] = BadOutput(
                step=step,
                module=path,
                value=operand(bad),
                file=None if line is None else line.shown_file,
                line=None if line is None else line.line,
            )

    def record(self) -> tuple[BadOutput, ...]:
        """What was found, the first first."""
        return tuple(self._found.values())


def _has_nan(tensor: torch.Tensor) -> bool:
    return bool(tensor.detach().isnan().any())

"""Shows every call of a function of torch's as a rule on operators meets it, and says which operator it spells.

A function is seen whole: what ``F.multi_head_attention_forward`` or a function in C++ calls within is not, as no rule
reaches it either.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Self

from torch.overrides import TorchFunctionMode

from ampwise.compat.functions import functions_of, is_innermost_function_mode
from ampwise.plan.names import listed, operators_meant, spellings

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called with a function and its arguments in the function's place; gives its result."""


class AroundFunctions(TorchFunctionMode):
    """Lets ``around`` stand in every function's place while the mode is entered, in this thread.

    Left while another mode lies over it, it stays and lets every call pass.
    """

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around: Around | None = around

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._around is None:
            return func(*args, **(kwargs or {}))
        return self._around(func, args, kwargs or {})

    def start(self) -> Self:
        """Enter it."""
        self.__enter__()
        return self

    def stop(self) -> None:
        """Leave it, or where that would take another mode away, do nothing from now on."""
        self._around = None
        if is_innermost_function_mode(self):
            self.__exit__(None, None, None)


def operator_spelt(function: Any) -> str | None:
    """The operator that a function spells, as a rule names it: ``matmul`` for ``torch.Tensor.__matmul__``."""
    try:
        return _spelt().get(function)
    except TypeError:  # no function of torch's: those can be hashed
        return None


@cache
def _spelt() -> dict[Any, str]:
    rows = spellings()
    names = dict.fromkeys((*rows["operators"], *rows["unlisted"], *listed()))
    found: dict[Any, str] = {}
    for name in names:
        for function in functions_of(name, rows["operators"].get(name, ())):
            if function not in found or getattr(function, "__name__", "") == name:
                found[function] = _word(name)
    return found


def _word(name: str) -> str:
    """``norm`` means layers of that kind, so that ``torch.norm`` has to be written out."""
    return name if name in operators_meant(name) else f"torch.{name}"

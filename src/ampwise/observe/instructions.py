"""Says whether two operators ran for one and the same call of Python's."""

import sys
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from ampwise.interpose import cast_kernels

_OURS: Final = str(Path(cast_kernels.__file__).parents[1])
_KERNELS: Final = cast_kernels.__file__
_WRAPPERS: Final = ("torch/_dynamo/eval_frame.py", "torch/_compile.py")
"""Where torch wraps a dispatch mode to keep it from being compiled."""


class Instruction(NamedTuple):
    """A call in a running frame. Operators that one C++ function runs share it; two calls of Python's never do."""

    frame: int
    offset: int
    is_cast_list: bool
    """It is a cast of ampwise's own cast lists."""


def current_instruction() -> Instruction:
    """The call that led to the operator which a dispatch mode is being shown."""
    frame = sys._getframe(1)  # noqa: SLF001 # inspect.currentframe is the same with a detour
    while frame.f_back is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return Instruction(id(frame), frame.f_lasti, frame.f_code.co_filename == _KERNELS)


@cache
def _is_between(filename: str) -> bool:
    """Whether the file's code only stands between the operator and who called it."""
    return filename != _KERNELS and (filename.startswith(_OURS) or filename.endswith(_WRAPPERS))

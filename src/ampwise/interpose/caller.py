"""Says whose code a call came from."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType

_OURS = "ampwise"
_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_paths().get(name))
)


def callers(*, besides: tuple[str, ...] = ()) -> Iterator[FrameType]:
    """The frames that led here, the innermost first, without ampwise's own and those of the modules ``besides``."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe is the same with a detour
    while frame is not None:
        if not _is_within(module_of(frame), (_OURS, *besides)):
            yield frame
        frame = frame.f_back


def users_stack_level() -> int:
    """The ``stacklevel`` for the function that calls this to warn at the first line outside of ampwise and torch."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe is the same with a detour
    level = 1
    while frame is not None and _is_within(module_of(frame), (_OURS, "torch")):
        frame, level = frame.f_back, level + 1
    return level


def module_of(frame: FrameType) -> str:
    """Name of the module whose code the frame runs."""
    return str(frame.f_globals.get("__name__", ""))


def is_torch(frame: FrameType) -> bool:
    """Whether the frame runs torch's own code."""
    return _is_within(module_of(frame), ("torch",))


def place_of(frame: FrameType) -> str:
    """``file:line`` of the frame."""
    return place(frame.f_code.co_filename, frame.f_lineno)


def place(filename: str, line: int) -> str:
    """``file:line``, relative to the current folder where it lies below it."""
    path = os.path.realpath(filename)
    here = os.getcwd() + os.sep  # noqa: PTH109 - compared as text
    return f"{path.removeprefix(here)}:{line}"


def script_place() -> str | None:
    """``file:line`` of the innermost frame that is the user's own: neither ampwise's nor in an installed library."""
    for frame in callers(besides=("torch", "runpy", "importlib")):
        if is_users(frame.f_code.co_filename):
            return place_of(frame)
    return None


def is_users(filename: str) -> bool:
    """Whether a source file belongs to the user: it is not in Python's library or among installed packages."""
    if filename.startswith("<"):
        return False
    return not os.path.realpath(filename).startswith(_LIBRARIES)


def _is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)

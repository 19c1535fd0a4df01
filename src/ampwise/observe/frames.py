"""Finds the line of the user's own code that led here, cheaply enough to ask at every operator."""

import os
import sys
import sysconfig
from functools import cache
from importlib.util import find_spec
from types import FrameType
from typing import Final, NamedTuple

_NAMELESS: Final = "<"
"""Begins the file name of code that came from no file."""
_NOTEBOOK: Final = "<ipython"
_TYPED: Final = frozenset({"<stdin>", "<string>"})
_HAS_SNAPSHOTS: Final = sys.version_info < (3, 13)
"""Before PEP 667 reading a function's variables makes a copy that the frame keeps, and so keeps its values alive."""


class Line(NamedTuple):
    """A line of source: the file as its code names it, and the line's number."""

    file: str
    line: int

    @property
    def shown_file(self) -> str:
        """The file as a person would type it: relative to the current folder where it lies below it."""
        if self.file.startswith(_NAMELESS):
            return self.file
        path = os.path.realpath(self.file)
        return path.removeprefix(os.getcwd() + os.sep)  # noqa: PTH109 # compared as text


def user_line(depth: int = 1) -> Line | None:
    """The innermost line of the user's own code that led here; None where no code but torch's and ours did.

    Neither torch, ampwise, Python's library nor an installed package counts as the user's; where nothing else is on
    the stack (``python -m package.train``), the innermost line of an installed package is taken.

    Args:
        depth: How many of the caller's own frames are passed over first.
    """
    frame: FrameType | None = sys._getframe(depth)  # noqa: SLF001 # inspect.currentframe is the same with a detour
    installed: Line | None = None
    while frame is not None:
        rank = _rank(frame.f_code.co_filename)
        if rank == _USERS:
            return Line(frame.f_code.co_filename, frame.f_lineno)
        if rank == _INSTALLED and installed is None:
            installed = Line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return installed


def user_frames() -> list[FrameType]:
    """The frames of the user's own code that led here, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 # as above
    found: list[FrameType] = []
    while frame is not None:
        if _rank(frame.f_code.co_filename) == _USERS:
            found.append(frame)
        frame = frame.f_back
    return found


def is_users_file(filename: str) -> bool:
    """Whether a source file is the user's own."""
    return _rank(filename) == _USERS


def variables_of(frame: FrameType) -> dict[str, object]:
    """The frame's variables and their values now, without keeping the values alive in the frame."""
    variables = frame.f_locals
    if not frame.f_code.co_flags & _OPTIMIZED:
        return variables  # a module's or class body's own names
    found = dict(variables)
    # the frame, this name and getrefcount's own argument: nobody else reads the copy that the frame would keep
    if _HAS_SNAPSHOTS and sys.getrefcount(variables) <= 3:
        variables.clear()
    return found


_OPTIMIZED: Final = 0x1  # inspect.CO_OPTIMIZED: the variables live in slots, not in a dict
_USERS, _INSTALLED, _HIDDEN = 2, 1, 0


@cache
def _rank(filename: str) -> int:
    """Whose code a file holds: the user's, an installed package's, or nobody's whom a report should name."""
    if filename.startswith(_NAMELESS):
        return _USERS if filename.startswith(_NOTEBOOK) else _INSTALLED if filename in _TYPED else _HIDDEN
    path = os.path.realpath(filename)
    if path.startswith(_folders_of("ampwise") + _folders_of("torch")):
        return _HIDDEN
    if path.startswith(_library("purelib", "platlib")):
        return _INSTALLED
    return _HIDDEN if path.startswith(_library("stdlib", "platstdlib")) else _USERS


@cache
def _folders_of(package: str) -> tuple[str, ...]:
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return tuple(os.path.realpath(place) + os.sep for place in places or ())


@cache
def _library(*names: str) -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[name]) + os.sep for name in names if paths.get(name))

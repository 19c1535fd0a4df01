"""Sends what a measured run saves to a scratch folder."""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, assert_never

from ampwise.interpose.saving import PATH_FUNCTIONS, Access, PathFunction, redirect
from ampwise.runner.imports import after_import

_CHECKPOINTS = (".pt", ".pth", ".ckpt", ".safetensors", ".pt.tar", ".pth.tar")
"""Files that ``open`` writes elsewhere too: ``with open("best.pt", "wb") as file: torch.save(weights, file)``."""


class Sandbox:
    """Where a path goes during a measured run.

    Law: a path that the run saved is found again wherever the run looks for it, in every process of the run:
    what is redirected is told by the file in the scratch folder, not by memory.

    Args:
        scratch: The folder for what is saved.
        folder: Whose files are the user's.
        everything: Keep all that is newly written there out of it, not checkpoints alone.
    """

    def __init__(self, scratch: str, *, folder: str, everything: bool = False) -> None:
        self._everything = everything
        self._scratch = os.path.abspath(scratch)
        self._folder = os.path.abspath(folder)

    def redirected(self, path: str) -> str:
        """The path in the scratch folder that stands for ``path``."""
        full = os.path.join(self._folder, path)
        full = os.path.normpath(full)
        if self._is_inside(full, self._scratch):
            return full
        inside = self._is_inside(full, self._folder)
        relative = os.path.relpath(full, self._folder) if inside else f"elsewhere/{full.lstrip('/')}"
        return os.path.join(self._scratch, relative)

    def _keeps_out(self, path: Any) -> bool:
        """Whether what is written to ``path`` is to lie elsewhere, whatever it is."""
        return self._everything and _is_path(path) and self._is_inside(os.path.abspath(path), self._folder)

    @staticmethod
    def _is_inside(path: str, folder: str) -> bool:
        return path == folder or path.startswith(f"{folder}{os.sep}")

    def for_writing(self, path: Any) -> Any:
        """The redirected path, its folder made; anything but a path of a file as it is."""
        if not _is_path(path):
            return path
        target = self.redirected(os.fspath(path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        return target

    def for_reading(self, path: Any) -> Any:
        """The redirected path if the run saved to it; else the path as it is."""
        if not _is_path(path):
            return path
        target = self.redirected(os.fspath(path))
        if not _exists(target) or target == os.fspath(path):
            return path
        return type(path)(target) if isinstance(path, Path) else target

    def rewrite(
        self, function: PathFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments with the paths it should use."""
        first = _get(args, kwargs, function.position, function.keywords[0])
        match function.access:
            case Access.WRITE:
                changed = self.for_writing("runs" if first is None else first)
            case Access.READ:
                changed = self.for_reading(first)
            case Access.OPEN:
                mode = set(_mode(args, kwargs))
                writes = (_is_checkpoint(first) and mode & set("wax+")) or (
                    mode & set("wax") and self._keeps_out(first)
                )
                changed = self.for_writing(first) if writes else self.for_reading(first)
            case Access.MOVE:
                changed = self.for_reading(first)
                target = _get(args, kwargs, function.position + 1, function.keywords[1])
                # fsspec, and so Lightning, writes a checkpoint elsewhere and moves it to its place
                if changed is not first or _is_checkpoint(target):
                    args, kwargs = _put(
                        args, kwargs, function.position + 1, function.keywords[1], self.for_writing(target)
                    )
            case _:
                assert_never(function.access)
        return _put(args, kwargs, function.position, function.keywords[0], changed)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)


def _is_checkpoint(value: Any) -> bool:
    return _is_path(value) and os.fspath(value).endswith(_CHECKPOINTS)


def _exists(path: str) -> bool:
    # os.path.exists is itself intercepted.
    try:
        os.stat(path)
    except (OSError, ValueError):
        return False
    return True


def _mode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    mode = _get(args, kwargs, 1, "mode")
    return mode if isinstance(mode, str) else "r"


def _get(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, keyword: str) -> Any:
    return args[position] if position < len(args) else kwargs.get(keyword)


def _put(
    args: tuple[Any, ...], kwargs: dict[str, Any], position: int, keyword: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if position < len(args):
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, kwargs if value is None else {**kwargs, keyword: value}


def redirect_saves(scratch: str, *, folder: str, everything: bool = False) -> ExitStack:
    """Send what the run saves to ``scratch``, relative paths being those of ``folder``, until the stack is closed.

    Args:
        scratch: See ``Sandbox``.
        folder: See ``Sandbox``.
        everything: See ``Sandbox``.
    """
    os.makedirs(scratch, exist_ok=True)
    place = Sandbox(scratch, folder=folder, everything=everything)
    stack = ExitStack()
    for function in PATH_FUNCTIONS:
        stack.callback(after_import(function.needs, partial(_redirect_until, stack, function, place)))
    return stack


def _redirect_until(stack: ExitStack, function: PathFunction, place: Sandbox) -> None:
    stack.callback(redirect(function, place.rewrite))

"""Leaves the user's files and folders as they were: what an imaginary run writes is worth nothing."""

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ampwise.interpose.saving import MKDIR, SAFETENSORS
from ampwise.interpose.seam import intercept
from ampwise.runner.imports import after_import
from ampwise.runner.sandbox import redirect_saves


@contextmanager
def files_untouched(scratch: str) -> Generator[None]:
    """Send what the script writes to ``scratch``; weights are not written at all, and empty folders are removed."""
    made: list[Path] = []

    def make_folder(proceed: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        result = proceed(path, *args, **kwargs)
        if isinstance(path, (str, os.PathLike)):
            made.append(Path(path).absolute())
        return result

    with ExitStack() as stack:
        stack.callback(_remove_empty, made)
        stack.callback(intercept(MKDIR.row, make_folder))
        stack.enter_context(redirect_saves(scratch, folder=str(Path.cwd()), everything=True))
        stack.callback(after_import(SAFETENSORS.needs, partial(_drop, stack)))
        yield


def _drop(stack: ExitStack) -> None:
    """Whole models need not be written as zeros."""
    stack.callback(intercept(SAFETENSORS.row, lambda *_, **__: None))


def _remove_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()

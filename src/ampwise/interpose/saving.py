"""Rows for the functions that write, read and move checkpoints and logs: a diagnosis must not overwrite anybody's."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ampwise.interpose.row import Row
from ampwise.interpose.seam import Undo, intercept


class Access(StrEnum):
    """What a function does with a path it is given."""

    WRITE = "write"
    READ = "read"
    OPEN = "open"
    """Reads or writes, by its mode."""
    MOVE = "move"
    """Takes a file from one path to another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFunction:
    """A function with a path among its arguments."""

    row: Row
    access: Access
    position: int
    """Of the path; for ``MOVE`` the source, with the target right after it."""
    keywords: tuple[str, ...]
    """Names of the path's (source's and target's) parameters."""
    needs: str
    """The module whose import makes the function available."""


def _row(owner: str, attribute: str) -> Row:
    return Row(
        name=f"saving.{owner.replace(':', '.')}.{attribute}",
        owner=owner,
        attribute=attribute,
        why="what a measured run saves, reads back or moves lies in a scratch folder",
    )


def _function(
    owner: str, attribute: str, access: Access, position: int, *keywords: str, needs: str = ""
) -> PathFunction:
    row = _row(owner, attribute)
    module = needs or owner.partition(":")[0]
    return PathFunction(row=row, access=access, position=position, keywords=keywords, needs=module)


PATH_FUNCTIONS = (
    _function("torch", "save", Access.WRITE, 1, "f"),
    _function("torch", "load", Access.READ, 0, "f"),
    _function("torch.jit", "save", Access.WRITE, 1, "f", needs="torch"),
    _function("torch.jit", "load", Access.READ, 0, "f", needs="torch"),
    _function("safetensors.torch", "save_file", Access.WRITE, 1, "filename"),
    _function("safetensors.torch", "load_file", Access.READ, 0, "filename"),
    _function("torch.utils.tensorboard.writer:SummaryWriter", "__init__", Access.WRITE, 1, "log_dir"),
    _function("tensorboardX.writer:SummaryWriter", "__init__", Access.WRITE, 1, "logdir"),
    _function("builtins", "open", Access.OPEN, 0, "file"),
    _function("io", "open", Access.OPEN, 0, "file"),
    _function("os", "replace", Access.MOVE, 0, "src", "dst"),
    _function("os", "rename", Access.MOVE, 0, "src", "dst"),
    _function("os", "chmod", Access.READ, 0, "path"),
    _function("os", "remove", Access.READ, 0, "path"),
    _function("os", "unlink", Access.READ, 0, "path"),
    _function("os.path", "exists", Access.READ, 0, "path"),
    _function("os.path", "isfile", Access.READ, 0, "path"),
    _function("os.path", "getsize", Access.READ, 0, "filename"),
    _function("pathlib:Path", "exists", Access.READ, 0, "self"),
    _function("pathlib:Path", "is_file", Access.READ, 0, "self"),
    _function("shutil", "copyfile", Access.MOVE, 0, "src", "dst"),
    _function("shutil", "copy", Access.MOVE, 0, "src", "dst"),
    _function("shutil", "copy2", Access.MOVE, 0, "src", "dst"),
    _function("shutil", "move", Access.MOVE, 0, "src", "dst"),
)

SAFETENSORS = next(one for one in PATH_FUNCTIONS if one.row.name == "saving.safetensors.torch.save_file")
MKDIR = _function("os", "mkdir", Access.WRITE, 0, "path")
"""Seen where folders that a run leaves empty are removed; what it is given is left as it is."""

ROWS = (*(function.row for function in PATH_FUNCTIONS), MKDIR.row)

Rewrite = Callable[[PathFunction, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]
"""Gives a call's arguments with other paths in them."""


def redirect(function: PathFunction, rewrite: Rewrite) -> Undo:
    """Let ``rewrite`` change the arguments of every call of ``function`` until the returned undo is called."""

    def through(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        args, kwargs = rewrite(function, args, kwargs)
        return proceed(*args, **kwargs)

    return intercept(function.row, through)

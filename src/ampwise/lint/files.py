"""Finds the files under the paths that were given: each once, whatever links point where."""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ampwise._base.errors import UsageError
from ampwise._base.text import inert_line
from ampwise.lint.config import Config

SUFFIXES: Final = (".py", ".ipynb")
_NEVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "__pypackages__"})


def find_files(paths: Sequence[str], config: Config) -> Iterator[str]:
    """The Python files and notebooks at or below ``paths``, as they will be called, sorted within each folder.

    Hidden folders, environments and what the configuration excludes are left out; a file that is named is not.

    Raises:
        UsageError: a path does not exist.
    """
    _check(paths)
    seen: set[str] = set()
    for path in paths:
        for file in _below(path, config) if os.path.isdir(path) else [path]:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                yield file


def _check(paths: Sequence[str]) -> None:
    missing = [path for path in paths if not os.path.lexists(path)]
    if missing:
        lines = [f"{inert_line(path)} does not exist; name a file or a folder" for path in missing]
        raise UsageError("\n".join(lines))


def _below(folder: str, config: Config) -> Iterator[str]:
    visited: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if _enters(os.path.join(here, name), name, config))
        for name in sorted(files):
            path = os.path.normpath(os.path.join(here, name))
            if name.endswith(SUFFIXES) and not config.is_excluded(path):
                yield path


def _enters(path: str, name: str, config: Config) -> bool:
    if name.startswith(".") or name in _NEVER or os.path.exists(os.path.join(path, "pyvenv.cfg")):
        return False
    return not config.exclude or not config.is_excluded(path)


def read(path: str, *, max_bytes: int) -> bytes:
    """The bytes of a plain file.

    Raises:
        OSError: it cannot be read, is none, or is larger than ``max_bytes``.
    """
    status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a plain file")
    if status.st_size > max_bytes:
        raise OSError(f"it is larger than {max_bytes // 10**6} MB")
    return Path(path).read_bytes()

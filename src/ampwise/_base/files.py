"""Writes files whole or not at all."""

import os
import tempfile
from pathlib import Path

from ampwise._base.errors import UsageError


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write ``content`` (text as UTF-8) beside ``path``, then rename it into place.

    A reader sees the old file or the new one, never half of either. A link stays, and what it leads to is replaced; a
    device or pipe is written to.

    Raises:
        UsageError: the file cannot be written; nothing is left behind.
    """
    target = _end_of_links(path)
    data = content.encode() if isinstance(content, str) else content
    if _is_stream(target):
        _write_through(target, data)
        return
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise UsageError(_refusal(target, error)) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(_mode(target))
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(_refusal(target, error)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_writable(path: str | os.PathLike[str]) -> None:
    """Say before the work, not after it, that ``path`` cannot be written.

    Raises:
        UsageError: it is a folder, its folder is missing, or writing there is refused.
    """
    target = _end_of_links(path)
    if target.is_dir():
        raise UsageError(f"cannot write {target}: it is a folder; name a file in it")
    if _is_stream(target):
        return
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{target.name}.", dir=target.parent):
            pass
    except OSError as error:
        raise UsageError(_refusal(target, error)) from error


def _end_of_links(path: str | os.PathLike[str]) -> Path:
    """What ``path`` leads to where it is a link, else ``path`` as it was given."""
    target = Path(path)
    return target.resolve() if target.is_symlink() and not _is_stream(target) else target


def _is_stream(target: Path) -> bool:
    """Whether it is there and neither a file nor a folder: /dev/null, /dev/stdout, a pipe."""
    return target.exists() and not target.is_file() and not target.is_dir()


def _write_through(target: Path, data: bytes) -> None:
    try:
        with target.open("wb") as stream:
            stream.write(data)
    except OSError as error:
        raise UsageError(_refusal(target, error)) from error


def _mode(target: Path) -> int:
    """The mode an ordinary ``open`` would leave: the old file's, else what the umask allows."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def _refusal(target: Path, error: OSError) -> str:
    if not target.parent.is_dir():
        return f"cannot write {target}: the folder {target.parent} does not exist; create it or name another place"
    return f"cannot write {target}: {error.strerror or error}; name a place you may write to"

"""What commands that run a script in measured processes share: checks before, a bar meanwhile, no folder after."""

import os
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path

from ampwise._base.errors import UsageError
from ampwise._base.files import check_writable
from ampwise._base.text import inert_line
from ampwise.cli.exits import has_syntax_error, say
from ampwise.runner.script import Target

Show = Callable[[str, int, int | None], None]
"""Told what runs, how many steps are made, and of how many; None where nobody knows."""


def check_script(target: Target, *, verb: str) -> int:
    """Say before the first run what would end every one: 0, or python's status for a syntax error.

    Raises:
        UsageError: there is no such script or module.
    """
    if target.module is not None:
        _check_module(target.module, verb)
        return 0
    path = Path(target.path or "")
    if path.is_dir():
        if PathFinder.find_spec("__main__", [str(path)]) is None:
            raise UsageError(
                f"can't find '__main__' module in {inert_line(str(path))!r}; name the script in that folder"
            )
        return 0
    try:
        source = path.read_bytes()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        hint = f"; {verb} runs scripts, no launchers such as {target.path}" if shutil.which(target.path or "") else ""
        raise UsageError(f"can't open file {inert_line(str(path.absolute()))!r}: {reason}{hint}") from None
    return int(has_syntax_error(source, str(path.absolute())))


def _check_module(name: str, verb: str) -> None:
    top, _, rest = name.partition(".")
    spec = PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    is_missing = spec is None or (rest and spec.submodule_search_locations is None)
    if is_missing and top not in sys.builtin_module_names:
        hint = f"; to {verb} a file: ampwise {verb} {name}" if name.endswith(".py") else ""
        raise UsageError(f"No module named {inert_line(name)}{hint}")


def check_device(device: str | None) -> None:
    """Say before the first run that there is no such device."""
    if device is not None:
        from ampwise.runtime.hardware.placement import use_device

        with use_device(device):
            pass


def check_files(files: dict[str, Path | None], target: Target) -> None:
    """Say before training what could not be written after it.

    Args:
        files: By the option that names each: ``--report``.
        target: The script, which none of them may be.
    """
    given = {option: path for option, path in files.items() if path is not None}
    for path in given.values():
        check_writable(path)
    taken: dict[Path, str] = {}
    script = None if target.path is None else Path(target.path).resolve()
    for option, path in given.items():
        full = path.resolve()
        if full in taken:
            raise UsageError(f"{taken[full]} and {option} both name {path}; name two files")
        if full == script:
            raise UsageError(f"{option} names the script {path}, which it would replace; name another file")
        taken[full] = option


@contextmanager
def progress_bar(*, has_lines: bool = False) -> Generator[Show]:
    """A bar with the time left on a terminal's stderr, gone at the end; nothing in a pipe.

    Args:
        has_lines: In a pipe, a line whenever something begins.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, num_done: int, num_total: int | None) -> None:
            if has_lines and not num_done and not console.is_terminal:
                say(what)
            bar.update(task, description=what, completed=num_done, total=num_total)

        yield show


def remove_empty(folder: str) -> None:
    """Remove the folders in which nothing was left."""
    for root, _, _ in os.walk(folder, topdown=False):
        if not any(Path(root).iterdir()):
            Path(root).rmdir()

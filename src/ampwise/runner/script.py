"""Runs somebody's script as the real ``__main__``, as ``python script.py`` would."""

import importlib.util
import io
import os
import sys
import threading
import tokenize
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from ampwise._base.errors import AmpwiseError, UsageError
from ampwise.runner.failures import strip_own_frames


class StopRun(SystemExit):
    """Ends the script after the steps asked for.

    A SystemExit of status 0: processes of the script's that it ends have ended well.
    """

    def __init__(self) -> None:
        super().__init__(0)


class RefusedRun(SystemExit):
    """Ends the script because ampwise cannot do what was asked; a script's ``except Exception`` does not hold it."""

    def __init__(self, error: AmpwiseError) -> None:
        super().__init__(error.exit_status)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A script, as named on the command line: a file or a module, and its arguments."""

    path: str | None = None
    module: str | None = None
    argv: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """What the user typed."""
        name = self.path if self.path is not None else f"-m {self.module}"
        return (*name.split(" ", 1), *self.argv) if self.path is None else (name, *self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnd:
    """How the script ended: the status python would exit with, and what ended it."""

    status: int
    error: BaseException | None = None
    """The uncaught exception or the SystemExit; None where the last line was reached."""
    stopped: bool = False
    """ampwise ended it after the steps asked for."""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return isinstance(self.error, KeyboardInterrupt)


ErrorHandler = Callable[[BaseException], int]


def show_error(error: BaseException) -> int:
    """Print the traceback as python does, through the script's own ``sys.excepthook``; the status is 1."""
    strip_own_frames(error)
    _flush()
    sys.excepthook(type(error), error, error.__traceback__)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def run_target(target: Target, *, on_error: ErrorHandler = show_error) -> ScriptEnd:
    """Run the script as ``__main__`` in this process and say how it ended.

    ``sys.modules["__main__"]``, ``sys.argv`` and ``sys.path[0]`` are the script's from here on: its atexit
    handlers and child processes still look for them.

    Args:
        target: the script.
        on_error: is given an uncaught exception (or KeyboardInterrupt), prints it, and gives the status.

    Raises:
        UsageError: there is no such script or module.
        AmpwiseError: ampwise could not do what was asked when the script imported torch.
    """
    end = _execute(target, on_error)
    if not isinstance(end.error, KeyboardInterrupt):
        _join_threads()
    return end


def source_of(target: Target) -> tuple[str, str]:
    """The script's path and text.

    Raises:
        UsageError: there is no such script or module, or it has no source.
    """
    if target.module is not None:
        _set_first_path(os.getcwd())
    path = (target.path if target.module is None else _find_main(target.module).origin) or ""
    try:
        with tokenize.open(path) as file:  # in the encoding the script declares
            return path, file.read()
    except OSError as error:
        raise UsageError(f"can't open file {_absolute(path)!r}: [Errno {error.errno}] {error.strerror}") from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read the source of {path!r}: {error}") from None


def _execute(target: Target, on_error: ErrorHandler) -> ScriptEnd:
    has_code = False
    try:
        main, load = _prepare(target)  # a module's packages are imported here: their errors are the script's
        code = load()
        has_code = True
        exec(code, main.__dict__)  # noqa: S102 - running the script is what was asked for
    except StopRun as stop:
        return ScriptEnd(status=0, error=stop, stopped=True)
    except RefusedRun as refused:
        raise refused.error from None
    except SystemExit as leaving:
        return ScriptEnd(status=_exit_status(leaving.code), error=leaving)
    except BaseException as error:
        if isinstance(error, UsageError) and not has_code:
            raise
        return ScriptEnd(status=on_error(error), error=error)
    return ScriptEnd(status=0)


def _exit_status(code: object) -> int:
    """What python exits with for ``sys.exit(code)``; a code that is no number is printed."""
    match code:
        case None:
            return 0
        case int():
            return code & 0xFF
        case _:
            _flush()
            sys.stderr.write(f"{code}\n")
            return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


def _join_threads() -> None:
    """Wait as python does: a script may train in a thread that it does not join.

    Idle threads of an open pool wait for python's own end, which wakes them.
    """
    pools = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", {})
    for thread in threading.enumerate():
        is_pools = thread in pools or type(thread).__name__ == "_ExecutorManagerThread"
        if thread is not threading.current_thread() and not thread.daemon and not is_pools:
            thread.join()


def _prepare(target: Target) -> tuple[ModuleType, Callable[[], CodeType]]:
    """Put an empty ``__main__`` in place, and say how to get its code."""
    if target.module is not None:
        return _prepare_module(target.module, target.argv)
    path = target.path or ""
    full = _absolute(path)
    if os.path.isdir(full):
        return _prepare_folder(path, target.argv)
    return _prepare_file(path, full, target.argv)


def _absolute(path: str) -> str:
    """CPython's absolute path of a script: joined to the folder, not normalised."""
    if os.path.isabs(path):
        return path
    return f"{os.getcwd()}/{path}"


def _prepare_file(path: str, full: str, argv: tuple[str, ...]) -> tuple[ModuleType, Callable[[], CodeType]]:
    try:
        with io.open_code(full) as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"can't open file {full!r}: [Errno {error.errno}] {error.strerror}") from None
    main = _new_main(full, loader=SourceFileLoader("__main__", full), spec=None, package=None)
    _enter(main, [path, *argv], first=os.path.dirname(os.path.realpath(full)))
    return main, lambda: compile(source, full, "exec", dont_inherit=True)


def _prepare_folder(path: str, argv: tuple[str, ...]) -> tuple[ModuleType, Callable[[], CodeType]]:
    """A folder with a ``__main__.py``, as in ``python folder``."""
    folder = os.path.abspath(path)
    spec = PathFinder.find_spec("__main__", [folder])
    if spec is None or spec.origin is None:
        raise UsageError(f"can't find '__main__' module in {folder!r}; name the script in that folder")
    main = _new_main(spec.origin, loader=spec.loader, spec=spec, package="")
    _enter(main, [path, *argv], first=folder)
    return main, lambda: _code_of(spec, "__main__")


def _prepare_module(name: str, argv: tuple[str, ...]) -> tuple[ModuleType, Callable[[], CodeType]]:
    """A module, as in ``python -m name``: found with the current folder first on the path."""
    _set_first_path(os.getcwd())
    spec = _find_main(name)
    if spec.origin is None:
        raise UsageError(f"{name} has no code to run; name a module that is a file, or a package with a __main__.py")
    main = _new_main(spec.origin, loader=spec.loader, spec=spec, package=spec.parent)
    _enter(main, [spec.origin, *argv], first=None)
    return main, lambda: _code_of(spec, name)


def _find_main(name: str) -> ModuleSpec:
    """The module itself, or a package's ``__main__``."""
    spec = _find_module(name)
    return spec if spec.submodule_search_locations is None else _find_module(f"{name}.__main__")


def _find_module(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        spec = None
    except (ImportError, ValueError, AttributeError) as error:
        if isinstance(error, ImportError) and not name.startswith("."):
            raise
        spec = None
    if spec is None:
        hint = f"; to run a file: ampwise run {name}" if name.endswith(".py") else ""
        raise UsageError(f"No module named {name}{hint}")
    return spec


def _code_of(spec: ModuleSpec, name: str) -> CodeType:
    code = spec.loader.get_code(spec.name) if isinstance(spec.loader, InspectLoader) else None
    if code is None:
        raise UsageError(f"no code object available for {name}")
    return code


def _new_main(path: str, *, loader: object, spec: ModuleSpec | None, package: str | None) -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __loader__=loader, __spec__=spec, __package__=package, __cached__=spec.cached if spec else None
    )
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    return main


def _enter(main: ModuleType, argv: list[str], *, first: str | None) -> None:
    """Make ``main`` the process's main module for good: it must outlive the script's last line."""
    sys.modules["__main__"] = main
    sys.argv[:] = argv
    if first is not None:
        _set_first_path(first)


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0:1] = [folder]

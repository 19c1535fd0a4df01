"""What an uncaught exception of the script says: where it was raised, of what kind, whether CUDA was missing."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from ampwise._base.errors import AmpwiseError
from ampwise._base.text import inert, inert_line
from ampwise.interpose.caller import is_users
from ampwise.records.run import Failure, RunEnd

_OWN = str(Path(__file__).resolve().parents[1])
_NO_CUDA = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver on your system",
    "No CUDA GPUs are available",
    "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False",
    "PyTorch is not linked with support for cuda devices",
    "Cannot access accelerator device when none is available",
    "with arguments from the 'CUDA' backend",
)
_PASSED_ON = ("proceed(", "_call(", "_chain(", "exec(", "compile(")
"""How ampwise's lines read that call the script's or torch's functions."""
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")


def strip_own_frames(error: BaseException) -> None:
    """Take ampwise's frames out of the tracebacks of ``error`` and of what it was raised from."""
    for one in _chain(error):
        one.__traceback__ = _without_own(one.__traceback__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.extend(next_one for next_one in (one.__cause__, one.__context__) if next_one is not None)


def _frames(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _without_own(tb: TracebackType | None) -> TracebackType | None:
    kept = [one for one in _frames(tb) if not _is_own(one.tb_frame.f_code.co_filename)]
    following: TracebackType | None = None
    for one in reversed(kept):
        one.tb_next = following
        following = one
    return following


def _is_own(filename: str) -> bool:
    return filename.startswith(_OWN)


def own_place(error: BaseException) -> str | None:
    """``file:line`` where ``error`` was raised, if that is in ampwise's own code and not in what it only passed on."""
    deepest = traceback.extract_tb(error.__traceback__)[-1:]
    if not deepest or not _is_own(deepest[0].filename) or any(call in (deepest[0].line or "") for call in _PASSED_ON):
        return None
    return f"{deepest[0].filename}:{deepest[0].lineno}"


def user_place(error: BaseException) -> str | None:
    """``file:line`` of the deepest frame in the user's own code: not installed, not ampwise's, not Python's."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if is_users(frame.filename) and not _is_own(frame.filename)
    ]
    return places[-1] if places else None


def describe(error: BaseException) -> Failure:
    """The exception as a record: its class, its text, and the user's line; or ours, if it is no refusal."""
    message = missing_cuda(error) or inert(str(error))
    place = None if isinstance(error, AmpwiseError) else own_place(error)
    return Failure(kind=type(error).__name__, message=message, where=user_place(error), own_place=place)


def end_of(error: BaseException) -> RunEnd:
    """How a run ended that ``error`` ended."""
    text = str(error)
    is_memory = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)
    )
    return RunEnd.OUT_OF_MEMORY if is_memory else RunEnd.FAILED


def missing_cuda(error: BaseException) -> str | None:
    """The sentence for a script that asks for CUDA on a machine without it; None for any other error."""
    text = str(error)
    if not isinstance(error, (AssertionError, RuntimeError)) or not any(words in text for words in _NO_CUDA):
        return None
    import torch

    if torch.cuda.is_available():
        return None
    what = "loads CUDA tensors" if "deserialize" in text else "asks for CUDA"
    remedy = 'map_location="cpu"' if "deserialize" in text else '"cuda" if torch.cuda.is_available() else "cpu"'
    place = user_place(error) or "the script"
    build = f"torch {torch.__version__}"
    return inert_line(
        f"{place} {what}, which this machine lacks ({build}); write {remedy} there, "
        "or give the script its own option for the CPU",
        max_length=500,
    )

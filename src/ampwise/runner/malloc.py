"""Sets the CPU's allocator so that large tensors are kept between steps, not returned to the system."""

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampwise.runner.spec import Malloc

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NO_TRIM = -1
"""mallopt(3): a trim threshold of -1 disables trimming."""
_DEFAULT_TRIM, _DEFAULT_MMAP_MAX = 128 * 1024, 65_536

ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "68719476736"}
"""The same setting for a process that is yet to start."""

_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc", "hoard", "libscudo")

Mallopt = Callable[[int, int], int]


def _nothing() -> None:
    """Undoes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSetting:
    """What was done to the allocator, in words, and how to take it back."""

    words: str
    undo: Callable[[], None] = _nothing


def set_allocator(
    malloc: Malloc, *, environ: Mapping[str, str], on_cpu: bool, mallopt: Mallopt | None = None
) -> AllocatorSetting:
    """Apply the setting to this process.

    Args:
        malloc: what was asked for; ``auto`` tunes unless something speaks against it.
        environ: the process's environment: a user's own setting is left alone.
        on_cpu: the training runs on the CPU.
        mallopt: the C function; by default the process's own, if it has one.
    """
    if malloc is Malloc.SYSTEM:
        return AllocatorSetting(words="system")
    against = _why_not(environ, on_cpu=on_cpu) if malloc is Malloc.AUTO else None
    if against is not None:
        return AllocatorSetting(words=against)
    call = mallopt or _own_mallopt()
    if call is None:
        return AllocatorSetting(words="system (not glibc's, so left as it is)")
    if not (call(_M_MMAP_MAX, 0) and call(_M_TRIM_THRESHOLD, _NO_TRIM)):
        return AllocatorSetting(words="system (mallopt was refused)")

    def undo() -> None:
        call(_M_MMAP_MAX, _DEFAULT_MMAP_MAX)
        call(_M_TRIM_THRESHOLD, _DEFAULT_TRIM)

    return AllocatorSetting(words="tuned (large tensors are kept between steps)", undo=undo)


def children_environment(
    malloc: Malloc, *, environ: Mapping[str, str], mallopt: Mallopt | None = None
) -> dict[str, str]:
    """What the environment of a process to be started needs: nothing, but where mallopt is refused.

    Asking changes nothing: the value asked for is glibc's default.
    """
    call = mallopt or _own_mallopt()
    is_wanted = malloc is Malloc.TUNED or (malloc is Malloc.AUTO and _why_not(environ, on_cpu=True) is None)
    is_refused = call is not None and not call(_M_MMAP_MAX, _DEFAULT_MMAP_MAX)
    return dict(ENVIRONMENT) if is_wanted and is_refused else {}


def _why_not(environ: Mapping[str, str], *, on_cpu: bool) -> str | None:
    """Why ``auto`` leaves the allocator alone; None where it does not."""
    own = sorted(
        name
        for name, value in environ.items()
        if name.startswith("MALLOC_") or (name == "GLIBC_TUNABLES" and "malloc" in value)
    )
    if own:
        return f"the user's own ({', '.join(own)})"
    other = _other_allocator(environ.get("LD_PRELOAD", ""))
    if other is not None:
        return f"the user's own ({other})"
    return None if on_cpu else "system (the training is not on the CPU)"


def _other_allocator(preloaded: str) -> str | None:
    """The allocator that stands in glibc's place in this process, if any."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        mapped = ""
    libraries = {Path(line.split()[-1]).name for line in mapped.splitlines() if ".so" in line}
    libraries.update(Path(name).name for name in preloaded.replace(":", " ").split())
    return next((name for name in sorted(libraries) if any(other in name for other in _OTHER_ALLOCATORS)), None)


def _own_mallopt() -> Mallopt | None:
    """The mallopt of glibc; None on another C library."""
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return None
        function: Any = ctypes.CDLL(None).mallopt
    except (OSError, ValueError, AttributeError):
        return None
    function.argtypes, function.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    return function

"""Says that a disk is full where torch only says that it lost its place in the file."""

import shutil
from pathlib import Path
from typing import Final

from ampwise._base.units import format_bytes

_LOST_PLACE: Final = "inline_container"
"""The source of torch's that writes archives; it tells of a short write, not of its reason."""


def explained(fault: str, folder: Path) -> str:
    """What could not be written, and how much room there is, where torch does not say.

    Args:
        fault: in torch's words or the system's.
        folder: where it was to be written.
    """
    if _LOST_PLACE not in fault:
        return fault
    try:
        room = format_bytes(shutil.disk_usage(folder).free)
    except OSError:
        room = "an unknown number of bytes"
    return f"{fault} (torch could not go on writing, with {room} free there: is the disk or a quota full?)"

"""Shows the few lines of plain torch.amp that would do in a script what ``ampwise run`` does to it."""

import re
from dataclasses import dataclass
from difflib import unified_diff

from ampwise.runner.placement.edits import unfold
from ampwise.runner.placement.place import Placement
from ampwise.runner.placement.source import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCode:
    """A script with torch.amp written into it."""

    diff: str
    """A unified diff from the script to ``patched``; empty where there is nothing to add or no place was found."""
    patched: str
    """The whole changed script."""
    notes: tuple[str, ...]
    """Why there is no diff, and what else the reader should know."""


def show_code(source: str, *, filename: str, precision: str, device_type: str) -> ShownCode:
    """The lines of plain torch that train ``source`` in ``precision``, where they belong in it.

    Nothing is run and torch is not imported: all is told from the text.

    Args:
        source: the script's text.
        filename: what the diff and errors call it.
        precision: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
        device_type: ``cpu``, ``cuda``, ...; written into the lines.

    Raises:
        SyntaxError: the script has one; the error is Python's own.
    """
    text = source
    while True:
        placement = Placement(source=parse(text, filename=filename), precision=precision, device_type=device_type)
        placement.place()
        if not placement.edits.crowded:
            break
        text = unfold(placement.source, placement.edits.crowded)
    patched = placement.edits.apply() if placement.edits else source
    diff = _diff(source, patched, filename=filename, title=f"{filename} in {precision}")
    return ShownCode(diff=diff, patched=patched, notes=tuple(dict.fromkeys(placement.notes)))


def _diff(before: str, after: str, *, filename: str, title: str) -> str:
    lines = unified_diff(_lines(before), _lines(after), fromfile=filename, tofile=title)
    return "".join(line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines as Python counts them: a form feed ends none."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)

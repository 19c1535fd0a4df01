"""Makes names and messages that others chose inert before they are shown."""

import re
import unicodedata

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


def inert(text: str) -> str:
    """``text`` without terminal escapes, control, direction and surrogate characters; tabs and line feeds stay."""
    plain = _ANSI.sub("", text)
    return "".join(c if _is_harmless(c) else "\N{REPLACEMENT CHARACTER}" for c in plain)


def inert_line(text: str, *, max_length: int = 200) -> str:
    """``inert`` text on one line, cut to ``max_length`` characters."""
    line = " ".join(inert(text).split())
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def _is_harmless(character: str) -> bool:
    return character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cf", "Cs"}

"""Says which of the possible words was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def closest(given: str, possible: Iterable[str]) -> str | None:
    """Which of ``possible`` is spelt most like ``given``, if any is near."""
    matches = get_close_matches(given.lower(), list(possible), n=1, cutoff=0.5)
    return matches[0] if matches else None


def not_one_of(given: str, possible: Iterable[str], *, kind: str) -> str:
    """The sentence for a word that is not one of a closed set.

    Example: ``"bf61" is not a precision; did you mean "bf16"? (one of: auto, bf16, fp16)``.
    """
    words = list(possible)
    near = closest(given, words)
    hint = f'; did you mean "{near}"?' if near else ""
    article = "an" if kind[0] in "aeiou" else "a"
    return f'"{given}" is not {article} {kind}{hint} (one of: {", ".join(words)})'

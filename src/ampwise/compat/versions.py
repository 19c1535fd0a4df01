"""The torch releases that ampwise was run on, and a warning for the others."""

import warnings
from contextlib import suppress
from typing import Final

TESTED: Final = ("2.13",)
"""The releases on which the whole suite of tests passed."""


def warn_of_untested(version: str | None) -> None:
    """Warn where this torch is none of those that ampwise was run on.

    Who makes errors of warnings is not stopped by it: ``ampwise run`` is in somebody else's process.

    Args:
        version: as in 2.13.0+cpu; None where it is not known.
    """
    if version is None or ".".join(version.split(".")[:2]) in TESTED:
        return
    with suppress(UserWarning):
        warnings.warn(
            f"ampwise was tested with torch {', '.join(TESTED)}; this is {version}. It may work; where a number or a "
            "message surprises you, compare with a tested torch",
            stacklevel=2,
        )

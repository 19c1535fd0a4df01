"""Tells the error of a process that only waited for another from one of its own."""

from typing import Final

_WORDS: Final = (
    "closed by peer",
    "reset by peer",
    "remote process exited",
    "communicator was aborted",
    "timed out waiting",
)
"""What gloo and NCCL say on ranks that only waited for the one that failed."""
LOST_PEER: Final = (
    "Another process of this training has ended or cannot be reached; this one is not at fault. Look for the process "
    "that ended first: torchrun names it under `Root Cause`. Where that is this one, the other came to its own end: "
    "give all ranks as many steps, or use torch's Join."
)
"""What to do then."""


def has_lost_peer(message: str) -> bool:
    """Whether an error's text says that another process of the training is gone."""
    return any(words in message.lower() for words in _WORDS)

"""What torch.compile's own accounts say: they are private to TorchDynamo."""

import sys
from typing import Any, NamedTuple


class Break(NamedTuple):
    """Where and why a graph ended."""

    reason: str
    frames: tuple[tuple[str, int], ...]
    """The source's frames as file and line, the innermost last."""


class CompilerAccounts(NamedTuple):
    """What was compiled so far in this process."""

    num_graphs: int
    num_frames: int
    num_frames_done: int
    breaks: tuple[Break, ...]


def compiler_accounts() -> CompilerAccounts | None:
    """What was compiled so far; None where TorchDynamo was never loaded. It is not loaded for this."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return None
    frames = dynamo.counters["frames"]
    return CompilerAccounts(
        num_graphs=dynamo.counters["stats"]["unique_graphs"],
        num_frames=frames["total"],
        num_frames_done=frames["ok"],
        breaks=tuple(
            Break(str(one.reason), tuple((frame.filename, frame.lineno or 0) for frame in one.user_stack))
            for one in dynamo.graph_break_reasons
        ),
    )

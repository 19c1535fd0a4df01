"""Records work for an accelerator once, and does it again without Python: CUDA graphs."""

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")
Replay = Callable[[], None]
_LOG = logging.getLogger("ampwise")

_ADVICE = (
    "While a step is captured nothing may wait for the device or read from the host: in the loss function no .item(), "
    "print of a tensor, `if` on a tensor, boolean mask or .to(device) of a new tensor; make those outside of it."
)


class Graphs(Protocol):
    """Makes graphs that are replayed in the order in which they were recorded, or a part of it.

    Law: after ``record(body)`` each call of the replay writes to the tensors that ``body`` wrote and returned what
    calling ``body`` again would have written. Python's side of ``body`` runs while it is recorded and never again.
    """

    def warm_up(self, body: Callable[[], T]) -> T:
        """Call ``body`` as it will be recorded, so that what is made at a first call is made."""
        ...

    def record(self, body: Callable[[], T]) -> tuple[Replay, T]:
        """Record ``body`` without its effect on the device; what it returned is filled by the replay."""
        ...


class CudaGraphs:
    """The graphs of one captured step. They share their memory, since they never run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)
        self._pool: Any = None

    def warm_up(self, body: Callable[[], T]) -> T:
        """Call ``body`` on the stream that will be captured; the stream of the caller waits for it, not the host."""
        callers: Any = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(callers)
        with torch.cuda.stream(self._stream):
            returned = body()
        callers.wait_stream(self._stream)
        return returned

    def record(self, body: Callable[[], T]) -> tuple[Replay, T]:
        """Capture ``body``.

        Raises:
            RuntimeError: it cannot be captured; a note says what may not be in it.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(self._device), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                returned = body()
        except RuntimeError as error:
            error.add_note(_ADVICE)
            raise
        self._pool = graph.pool()
        return graph.replay, returned


def graphs_for(device: torch.device) -> Graphs | None:
    """What records for ``device``; None where it has no graphs, which the log says."""
    if device.type == "cuda":
        return CudaGraphs(device)
    _LOG.info("%s has no CUDA graphs: a captured step is taken as ever", device.type)
    return None

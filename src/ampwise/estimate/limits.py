"""When an imaginary run ends: after enough steps, too long a time, or where it turns out to be none of a GPU's."""

import resource
import signal
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from ampwise._base.errors import CannotRunError
from ampwise.estimate.ledger import Ledger
from ampwise.observe.events import BackwardStarted, EventBus, StepOutcome
from ampwise.observe.frames import user_line
from ampwise.runner.script import RefusedRun, StopRun

_MAX_STEPS: Final = 16
"""Of one optimizer, where another steps too seldom to wait for."""
_MEMORY: Final = Path("/proc/meminfo")


class StepLimit:
    """Ends the script once every optimizer has made enough steps.

    A GAN's two optimizers take turns: the state of both is made before the second round.
    """

    def __init__(self, bus: EventBus, ledger: Ledger, *, num_steps: int) -> None:
        self._bus = bus
        self._ledger = ledger
        self._least = num_steps
        self._num_steps: Counter[int] = Counter()

    @property
    def num_steps(self) -> int:
        """How many every optimizer has made."""
        return min(self._num_steps.values(), default=0)

    @contextmanager
    def watching(self) -> Generator[None]:
        """Look on, the last to be told of a step."""
        undos = [
            self._bus.subscribe(BackwardStarted, self._on_backward),
            self._bus.subscribe(StepOutcome, self._on_step),
        ]
        try:
            yield
        finally:
            for undo in undos:
                undo()

    def _on_backward(self, _: BackwardStarted) -> None:
        if not self._ledger.storages:
            line = user_line()
            place = "" if line is None else f" at {line.shown_file}:{line.line}"
            raise RefusedRun(
                CannotRunError(
                    f"the script trains on the CPU: nothing is on the GPU when the backward pass begins{place}; move "
                    'the model and its data there: device = "cuda" if torch.cuda.is_available() else "cpu"'
                )
            )

    def _on_step(self, outcome: StepOutcome) -> None:
        self._num_steps[id(outcome.optimizer)] += 1
        if self.num_steps >= self._least or max(self._num_steps.values()) >= _MAX_STEPS:
            raise StopRun


@contextmanager
def ended_after(seconds: float) -> Generator[None]:
    """End the script with a line that says where it was, if it runs longer."""

    def end(_signal: int, frame: FrameType | None) -> None:
        del frame
        line = user_line(2)
        place = "" if line is None else f"; it is at {line.shown_file}:{line.line}"
        raise RefusedRun(
            CannotRunError(
                f"no end of the second training step within {seconds:g} s{place}. Every number that a script reads "
                "from the imaginary GPU is 0: a loop that waits for another never ends. For a script that is only "
                "slow: --time-limit"
            )
        )

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def leave_memory_to_others() -> None:
    """Let this process ask for what memory is free at most: more would drive the machine into swapping."""
    with suppress(OSError, ValueError, StopIteration):
        line = next(one for one in _MEMORY.read_text(encoding="ascii").splitlines() if one.startswith("MemAvailable"))
        free = int(line.split()[1]) * 1024
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (free, hard))

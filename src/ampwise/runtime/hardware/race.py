"""Times formats against fp32 within a budget, from small matrices to large; knows no torch.

Formats take turns, so that drift falls on all alike. A format without hardware (fp16 on most CPUs) shows itself on
small matrices, before it costs time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ampwise.runtime.hardware.facts import Measured

Timer = Callable[[str, int], float]
"""Seconds that the products take, of a format's name and the matrices' size."""

BUDGET_S = 0.2
"""All formats together; a product that would run over its format's share by much is not started."""
NUM_ROUNDS = 4
SETUP_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What the measurement found."""

    measured: Mapping[str, Measured]
    failed: Mapping[str, str]
    """Why a format could not be measured."""


def race(
    timer: Timer,
    *,
    formats: Sequence[str],
    sizes: Sequence[int],
    budget_s: float = BUDGET_S,
) -> Probe:
    """Compare ``formats`` with fp32 at the largest of ``sizes`` that each can afford.

    Small sizes only show what the next one would cost: the rounds are spent on the largest, because on a busy
    machine a small product measures the scheduler.

    Args:
        timer: what is measured.
        formats: by name; ``fp32`` must be among them.
        sizes: ascending.
        budget_s: shared out evenly: a slow format uses up its own share, nobody else's.
    """
    runs = {name: _Run(timer=timer, name=name, allowance_s=budget_s / len(formats)) for name in formats}
    fp32 = runs["fp32"]
    for run in runs.values():
        run.set_up()
    for size in sizes:
        starters = [run for run in runs.values() if run.can_afford(size)]
        if fp32 not in starters:
            break
        _in_turn(starters, size, num_rounds=2)
    _in_turn([run for run in runs.values() if run.size == fp32.size], fp32.size, num_rounds=NUM_ROUNDS)
    return Probe(
        measured={run.name: run.compared_with(fp32) for run in runs.values() if run.size},
        failed={run.name: run.error for run in runs.values() if run.error and not run.size},
    )


def _in_turn(runs: "Sequence[_Run]", size: int, *, num_rounds: int) -> None:
    for _ in range(num_rounds):
        for run in runs:
            run.sample(size)


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """One format's measurement: what is left of its share, and what it took at each size."""

    timer: Timer
    name: str
    allowance_s: float
    samples: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    error: str | None = None

    @property
    def size(self) -> int:
        """The largest size measured; 0 if none was."""
        return max(self.samples, default=0)

    def median_s(self, size: int) -> float:
        """The size's median; its first product pays for what is set up once, and counts only where it is alone."""
        return median(self.samples[size][1:] or self.samples[size])

    def compared_with(self, fp32: "_Run") -> Measured:
        """The ratio at the largest size; fp32 goes on whenever another format does, so it has that size too."""
        return Measured(ratio=fp32.median_s(self.size) / self.median_s(self.size), size=self.size)

    def can_afford(self, size: int) -> bool:
        """Whether one product of ``size`` is expected to fit into what is left, by the cube of the size."""
        if self.error or not self.size:
            return not self.error
        return min(self.samples[self.size]) * (size / self.size) ** 3 <= self.allowance_s

    def set_up(self) -> None:
        """Pay for the libraries' start, which is not the format's cost."""
        self._time(SETUP_SIZE)

    def sample(self, size: int) -> None:
        """Take one more sample, if there is anything left to take it with."""
        if self.error or self.allowance_s <= 0:
            return
        seconds = self._time(size)
        if not self.error:
            self.samples.setdefault(size, []).append(seconds)
            self.allowance_s -= seconds

    def _time(self, size: int) -> float:
        try:
            return max(self.timer(self.name, size), 1e-9)
        except (RuntimeError, TypeError, AssertionError) as error:  # what torch raises for a product it does not have
            self.error = next(iter(str(error).splitlines()), type(error).__name__)
            return 0.0

"""Writes down what torch.compile made of a script, and the lines at which its graphs broke."""

from collections import Counter
from contextlib import ExitStack
from typing import Self

from ampwise.compat.compilation import Break, CompilerAccounts, compiler_accounts
from ampwise.observe.events import EventBus, StepOutcome
from ampwise.observe.frames import Line, is_users_file
from ampwise.records.compilation import CompileRecord, GraphBreak


class CompileWatch:
    """Reads the compiler's own accounts after each step, while entered: a reset of the compiler empties them.

    Args:
        bus: Where the loop's events are published.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._undo = ExitStack()
        self._breaks: tuple[Break, ...] = ()

    def __enter__(self) -> Self:
        self._undo.callback(self._bus.subscribe(StepOutcome, self._on_step))
        return self

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    @property
    def slowed_steps(self) -> frozenset[int]:
        """None: nothing happens in a step."""
        return frozenset()

    def record(self) -> CompileRecord | None:
        """What was compiled so far; None where nothing was."""
        accounts = self._read()
        if accounts is None or not (accounts.num_frames or accounts.num_graphs):
            return None
        return _record(accounts, self._breaks)

    def _on_step(self, _: StepOutcome) -> None:
        self._read()

    def _read(self) -> CompilerAccounts | None:
        accounts = compiler_accounts()
        if accounts is not None and len(accounts.breaks) > len(self._breaks):
            self._breaks = accounts.breaks
        return accounts


def _record(accounts: CompilerAccounts, breaks: tuple[Break, ...]) -> CompileRecord:
    places = Counter((_reason(one), _users_line(one)) for one in breaks)
    return CompileRecord(
        num_graphs=accounts.num_graphs,
        num_frames=accounts.num_frames,
        num_left=max(0, accounts.num_frames - accounts.num_frames_done),
        breaks=tuple(
            GraphBreak(
                reason=reason,
                count=count,
                file=None if line is None else line.shown_file,
                line=None if line is None else line.line,
            )
            for (reason, line), count in places.most_common()
        ),
    )


def _reason(one: Break) -> str:
    return next((line.strip() for line in one.reason.splitlines() if line.strip()), "no reason given")


def _users_line(one: Break) -> Line | None:
    """The innermost line of the user's own."""
    return next((Line(*frame) for frame in reversed(one.frames) if is_users_file(frame[0])), None)

"""Writes down what torch.compile made of a script, and the lines at which its graphs broke."""

from collections import Counter
from typing import Self

from ampwise.compat.compilation import Break, CompilerAccounts, compiler_accounts
from ampwise.observe.frames import Line, is_users_file
from ampwise.records.compilation import CompileRecord, GraphBreak


class CompileWatch:
    """Reads the compiler's own accounts when it is asked for its record; costs nothing until then."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Nothing was changed."""

    @property
    def slowed_steps(self) -> frozenset[int]:
        """None: nothing happens in a step."""
        return frozenset()

    def record(self) -> CompileRecord | None:
        """What was compiled so far; None where nothing was."""
        accounts = compiler_accounts()
        return _record(accounts) if accounts is not None and (accounts.num_frames or accounts.num_graphs) else None


def _record(accounts: CompilerAccounts) -> CompileRecord:
    places = Counter((_reason(one), _users_line(one)) for one in accounts.breaks)
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

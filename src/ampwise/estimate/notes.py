"""What an imaginary run had to assume, each once, with the user's line where it was needed first."""

from ampwise.observe.frames import user_line


class Notes:
    """Collects assumptions in the order they were made."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def assume(self, what: str) -> None:
        """Remember an assumption; its place is where it was made first."""
        if what not in self._said:
            line = user_line(2)
            self._said[what] = f"{what} (first at {line.shown_file}:{line.line})" if line is not None else what

    @property
    def texts(self) -> tuple[str, ...]:
        """All of them, in sentences without a full stop."""
        return tuple(self._said.values())

"""MP000: what could not be looked at. It is no rule with a check; the engine reports it in a finding's form."""

from typing import Final

from ampwise._base.text import inert_line
from ampwise.records.finding import Finding, Place, RuleInfo, Severity

UNREADABLE: Final = RuleInfo(
    id="MP000",
    name="not-checked",
    severity=Severity.ERROR,
    why="The file cannot be read or parsed as Python 3, so no rule has looked at it.",
    remedy="Correct the syntax or encoding, or leave the file out: exclude = [...] under [tool.ampwise.lint].",
    evidence="The parser of the Python that runs ampwise.",
)


def not_checked(path: str, reason: str, *, line: int = 1, column: int = 1, cell: int | None = None) -> Finding:
    """The one line that says why a file, or a notebook's cell, was left out."""
    place = Place(path=path, line=line, column=column, end_line=line, end_column=column, cell=cell)
    message = f"not checked: {inert_line(reason)}"
    return Finding(rule=UNREADABLE.id, severity=UNREADABLE.severity, message=message, place=place)


def unparsable(path: str, error: Exception, *, cell: int | None = None) -> Finding:
    """The finding for a text that ``ast.parse`` refused."""
    if isinstance(error, SyntaxError):
        line, column = max(error.lineno or 1, 1), max(error.offset or 1, 1)
        return not_checked(path, f"syntax error: {error.msg}", line=line, column=column, cell=cell)
    if isinstance(error, RecursionError | MemoryError):
        return not_checked(path, "the code is nested too deeply", cell=cell)
    return not_checked(path, str(error), cell=cell)

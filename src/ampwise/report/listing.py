"""What a table of a page is: its columns, its rows as text, and how many rows are left out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ampwise._base.text import inert_line

MAX_ROWS: Final = 25
"""Rows that are read; further ones stay in the recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading, and whether words stand under it or figures."""

    heading: str
    is_words: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A table with its heading and what a reader should know of it."""

    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    num_left_out: int = 0


def listing(
    title: str, headings: str, rows: Iterable[tuple[str, ...]], *, caption: str = "", max_rows: int = MAX_ROWS
) -> Listing | None:
    """A table; None where it has no rows.

    Args:
        title: Its heading.
        headings: Of its columns, parted by ``|``; one that begins with ``#`` stands over figures.
        rows: Cells as text, each row as long as there are columns.
        caption: What a reader should know.
        max_rows: How many are shown.
    """
    every = [tuple(inert_line(cell, max_length=160) for cell in row) for row in rows]
    if not every:
        return None
    columns = tuple(Column(heading=name.lstrip("#"), is_words=not name.startswith("#")) for name in headings.split("|"))
    return Listing(
        title=title,
        caption=caption,
        columns=columns,
        rows=tuple(every[:max_rows]),
        num_left_out=max(0, len(every) - max_rows),
    )

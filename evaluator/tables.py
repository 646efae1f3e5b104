"""Plain-text tables, printable texts and times."""

from collections.abc import Sequence
from datetime import UTC, datetime


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()
) -> str:
    """One line per row below *header*; the columns with the indices *numbers* are aligned right.

    Cells have no newlines. Raises ValueError for a row of another length.

    >>> print(format_table(["ranker", "queries"], [["served", "12"], ["bm25", "3"]], numbers=[1]))
    ranker  queries
    served       12
    bm25          3
    """
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    right = frozenset(numbers)

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join(line(cells) for cells in table)


def printable(text: str) -> str:
    r"""The text with escapes for characters that are not printable.

    >>> printable("a\x1b[2J\nb")
    'a\\x1b[2J\\nb'
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def utc_time(seconds: float, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    """A time in seconds since 1970 as text; outside of the years 1 to 9999 the whole seconds.

    >>> utc_time(0), utc_time(1e15)
    ('1970-01-01T00:00:00Z', '1000000000000000')
    """
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f}"

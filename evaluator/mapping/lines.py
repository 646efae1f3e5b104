"""The lines of the members of a TOML file."""

import re
from typing import Final

_TABLE: Final = re.compile(r"""\s*\[\s*([^\[\],"']+?)\s*\]\s*(?:#.*)?""")
_KEY: Final = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'|\s*\.\s*)+?)\s*=""")
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    r"""The line of each table and member, from 1; of members within a line, of the outer one.

    >>> lines_of('[a]\nb = 1\n[a.c]\nd.e = 2')
    {('a',): 1, ('a', 'b'): 2, ('a', 'c'): 3, ('a', 'c', 'd', 'e'): 4}
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _TABLE.fullmatch(line), _KEY.match(line)
        if header is not None:
            table = _parts(header[1])
        if header is not None or key is not None:
            lines.setdefault(table + (() if key is None or header else _parts(key[1])), number)
    return lines


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(key))

"""Exit codes of the commands, and the line of an error."""

import re
import sys
from typing import Final

USAGE: Final = 2
INPUT_UNUSABLE: Final = 3
STATE_UNUSABLE: Final = 4
FOUND: Final = 5
"""A check or a comparison has a negative result."""

_LONG_WORD: Final = re.compile(r"[^\s/]{256,}")  # longer than any part of a path


class UsageError(Exception):
    """An invalid command line; the message has the accepted form."""


def fail(error: Exception | str, code: int) -> int:
    """Prints an error in one line; returns *code*."""
    text = _LONG_WORD.sub(_abbreviated, " ".join(str(error).split()))
    print(f"evaluator: {text}", file=sys.stderr)
    return code


def _abbreviated(word: re.Match[str]) -> str:
    return f"{word[0][:40]}... ({len(word[0])} characters)"

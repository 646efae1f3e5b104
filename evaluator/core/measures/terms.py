"""What was asked of a measure beside its name."""

from decimal import Decimal
from typing import Final, NamedTuple

from evaluator.core.measures.lists import NEVER_RANKED

WHOLE_LIST: Final = NEVER_RANKED - 1
"""Cutoff of a measure that has none."""


class Terms(NamedTuple):
    """Cutoff and parameter of a name, and the scales that settings give.

    `parameter` is the number in brackets, exactly as written: a fraction of ten.
    """

    cutoff: int = WHOLE_LIST
    parameter: Decimal | None = None
    map_graded_max_grade: int = 2
    err_max_grade: int = 4

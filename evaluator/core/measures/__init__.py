"""Measures of ranking quality, defined in docs/measures.md; `registry` has their names."""

from evaluator.core.measures.exact_sums import MISSING, UNITS_PER_ONE, to_units
from evaluator.core.measures.lists import (
    NEVER_RANKED,
    WHOLE_LIST,
    JudgedLists,
    QuerySubtopics,
    Terms,
    TieGroups,
)
from evaluator.core.measures.registry import (
    MAX_MEASURES,
    Measure,
    MeasureFailedError,
    MeasureKind,
    MeasureSet,
    Parameter,
    UnknownMeasureError,
    UnsupportedTiesError,
    is_builtin,
    is_measure_name,
    known_measures,
    parse_measure,
)
from evaluator.core.measures.tables import MAX_GRADE, decay, discount, gain

__all__ = [
    "MAX_GRADE",
    "MAX_MEASURES",
    "MISSING",
    "NEVER_RANKED",
    "UNITS_PER_ONE",
    "WHOLE_LIST",
    "JudgedLists",
    "Measure",
    "MeasureFailedError",
    "MeasureKind",
    "MeasureSet",
    "Parameter",
    "QuerySubtopics",
    "Terms",
    "TieGroups",
    "UnknownMeasureError",
    "UnsupportedTiesError",
    "decay",
    "discount",
    "gain",
    "is_builtin",
    "is_measure_name",
    "known_measures",
    "parse_measure",
    "to_units",
]

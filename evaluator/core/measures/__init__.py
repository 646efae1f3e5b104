"""The measures of ranking quality: `lists` is what they see, `registry` gives them their names.

Everything that others need is here; docs/measures.md says what each measure means.
"""

from evaluator.core.measures.lists import NEVER_RANKED, JudgedLists, QuerySubtopics, TieGroups
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
from evaluator.core.measures.terms import WHOLE_LIST, Terms
from evaluator.core.measures.units import MISSING, UNITS_PER_ONE, to_units

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

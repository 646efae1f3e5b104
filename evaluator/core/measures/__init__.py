"""Measures of ranking quality, defined in docs/measures.md; `registry` has their names."""

from evaluator.core.measures.exact_sums import MISSING as MISSING
from evaluator.core.measures.exact_sums import UNITS_PER_ONE as UNITS_PER_ONE
from evaluator.core.measures.exact_sums import to_units as to_units
from evaluator.core.measures.lists import NEVER_RANKED as NEVER_RANKED
from evaluator.core.measures.lists import JudgedLists as JudgedLists
from evaluator.core.measures.lists import Terms as Terms
from evaluator.core.measures.registry import MAX_MEASURES as MAX_MEASURES
from evaluator.core.measures.registry import InvalidInputError as InvalidInputError
from evaluator.core.measures.registry import MeasureFailedError as MeasureFailedError
from evaluator.core.measures.registry import MeasureKind as MeasureKind
from evaluator.core.measures.registry import MeasureSet as MeasureSet
from evaluator.core.measures.registry import Parameter as Parameter
from evaluator.core.measures.registry import UnknownMeasureError as UnknownMeasureError
from evaluator.core.measures.registry import UnsupportedTiesError as UnsupportedTiesError
from evaluator.core.measures.registry import is_builtin as is_builtin
from evaluator.core.measures.registry import is_measure_name as is_measure_name
from evaluator.core.measures.registry import lower_is_better as lower_is_better
from evaluator.core.measures.registry import split_names as split_names
from evaluator.core.measures.tables import MAX_GRADE as MAX_GRADE

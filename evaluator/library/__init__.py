"""`evaluate` and `compare`: measures of rankings for programs and notebooks."""

from evaluator.comparison.paired import Interval as Interval
from evaluator.comparison.paired import Paired as Paired
from evaluator.core.measures import InvalidInputError as InvalidInputError
from evaluator.core.measures import UnknownMeasureError as UnknownMeasureError
from evaluator.core.measures import UnsupportedTiesError as UnsupportedTiesError
from evaluator.library.candidates import Detail as Detail
from evaluator.library.candidates import Freshness as Freshness
from evaluator.library.candidates import details as details
from evaluator.library.comparing import Compared as Compared
from evaluator.library.comparing import Effect as Effect
from evaluator.library.comparing import compare as compare
from evaluator.library.curves import PrecisionAtRecall as PrecisionAtRecall
from evaluator.library.curves import ThresholdCurve as ThresholdCurve
from evaluator.library.curves import precision_at_recall as precision_at_recall
from evaluator.library.curves import thresholds as thresholds
from evaluator.library.matching import MissingQueriesWarning as MissingQueriesWarning
from evaluator.library.measured import Measured as Measured
from evaluator.library.measuring import evaluate as evaluate

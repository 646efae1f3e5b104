"""The four features of tools and of graphs; docs/features.md has their meaning."""

from evaluator.core.features.embedding import Embedder as Embedder
from evaluator.core.features.embedding import HashedNgrams as HashedNgrams
from evaluator.core.features.embedding import Remembered as Remembered
from evaluator.core.features.history import Success as Success
from evaluator.core.features.history import SuccessTable as SuccessTable
from evaluator.core.features.history import learned as learned
from evaluator.core.features.history import shortened as shortened
from evaluator.core.features.matrix import FEATURE_NAMES as FEATURE_NAMES
from evaluator.core.features.matrix import features_of as features_of
from evaluator.core.features.matrix import filled as filled
from evaluator.core.types.candidates import CandidateKind as CandidateKind
from evaluator.core.types.candidates import Described as Described
from evaluator.core.types.candidates import Graph as Graph

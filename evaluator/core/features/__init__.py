"""The four features of tools and of graphs; docs/features.md says what each means."""

from evaluator.core.described import CandidateKind, Described, Graph
from evaluator.core.features.embedding import Embedder, Remembered
from evaluator.core.features.history import Credit, History, Ledger, learned, shortened
from evaluator.core.features.matrix import FEATURE_NAMES, features_of
from evaluator.core.features.ngrams import HashedNgrams

__all__ = [
    "FEATURE_NAMES",
    "CandidateKind",
    "Credit",
    "Described",
    "Embedder",
    "Graph",
    "HashedNgrams",
    "History",
    "Ledger",
    "Remembered",
    "features_of",
    "learned",
    "shortened",
]

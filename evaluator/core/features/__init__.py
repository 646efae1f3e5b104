"""The four features of tools and of graphs; docs/features.md says what each means."""

from evaluator.core.features.embedding import Embedder, Remembered
from evaluator.core.features.history import History, Ledger, Success, learned, shortened
from evaluator.core.features.matrix import FEATURE_NAMES, features_of
from evaluator.core.features.ngrams import HashedNgrams
from evaluator.core.types.candidates import CandidateKind, Described, Graph

__all__ = [
    "FEATURE_NAMES",
    "CandidateKind",
    "Described",
    "Embedder",
    "Graph",
    "HashedNgrams",
    "History",
    "Ledger",
    "Remembered",
    "Success",
    "features_of",
    "learned",
    "shortened",
]

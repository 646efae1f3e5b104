"""The four features of tools and of graphs; docs/features.md has their meaning."""

from evaluator.core.features.embedding import Embedder, HashedNgrams, Remembered
from evaluator.core.features.history import History, Success, learned, shortened
from evaluator.core.features.matrix import FEATURE_NAMES, features_of
from evaluator.core.types.candidates import CandidateKind, Described, Graph

__all__ = [
    "FEATURE_NAMES",
    "CandidateKind",
    "Described",
    "Embedder",
    "Graph",
    "HashedNgrams",
    "History",
    "Remembered",
    "Success",
    "features_of",
    "learned",
    "shortened",
]

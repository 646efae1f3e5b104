"""The errors and warnings of the library."""

from evaluator.core.measures import InvalidInputError

__all__ = ["InvalidInputError", "MissingQueriesWarning"]


class MissingQueriesWarning(UserWarning):
    """Some queries are only in the qrels or only in the run, and were left out."""

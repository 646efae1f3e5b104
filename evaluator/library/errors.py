"""The errors and warnings of the library."""


class InvalidInputError(ValueError):
    """Qrels, a run or an argument cannot be used; the message has the remedy."""


class MissingQueriesWarning(UserWarning):
    """Some judged queries are not in the run and were left out."""

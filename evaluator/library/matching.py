"""The queries of qrels and a run that count, and the report on the others."""

import inspect
import warnings
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from evaluator.core.measures import InvalidInputError
from evaluator.core.measures.lists import BoolArray
from evaluator.library.batches import Grades, Qrels, QueryBatch, Run, Scores, batches_of_dicts
from evaluator.library.forms import check_ids

Empty = Literal["zero", "skip"]
Missing = Literal["warn", "skip", "zero", "error"]
Ties = Literal["id", "average"]

_CHOICES: Final = {"empty": Empty, "missing": Missing, "ties": Ties}
_NO_SCORES: Final[Scores] = {}


class MissingQueriesWarning(UserWarning):
    """Some queries are only in the qrels or only in the run, and were left out."""


def check_choices(**chosen: str) -> None:
    """Raises InvalidInputError for unknown values of `empty`, `missing` and `ties`."""
    for name, value in chosen.items():
        if value not in (known := get_args(_CHOICES[name])):
            raise InvalidInputError(f"{name} is {value!r}; it must be {' or '.join(known)}.")


class Matched(NamedTuple):
    """The queries of qrels that count, their grades and scores, and how many others there are."""

    query_ids: list[str]
    judged: list[Grades]
    rankings: list[Scores]
    missing: int
    unjudged: int

    def batches(self, *, with_ids: bool = False) -> Iterator[QueryBatch]:
        """The queries in batches."""
        return batches_of_dicts(self.query_ids, self.judged, self.rankings, with_ids=with_ids)


def match(qrels: Qrels, run: Run, missing: Missing) -> Matched:
    """The queries of both. Raises InvalidInputError, or warns, of queries of one side alone."""
    check_choices(missing=missing)
    check_ids(qrels, run)
    found = dict(zip(qrels, map(run.get, qrels), strict=True))
    n_missing = sum(ranking is None for ranking in found.values())
    n_unjudged = len(run) - len(found) + n_missing
    _report((n_missing, len(qrels)), (n_unjudged, len(run)), missing)
    if missing != "zero":
        found = {name: ranking for name, ranking in found.items() if ranking is not None}
    rankings = [ranking or _NO_SCORES for ranking in found.values()]
    return Matched(list(found), [qrels[name] for name in found], rankings, n_missing, n_unjudged)


class Sides:
    """Numbers of rows of arrays: with a grade, with a score, with one and without the other."""

    def __init__(self) -> None:
        self._judged = self._ranked = self.missing = self.unjudged = 0

    def add(self, batch: QueryBatch) -> tuple[BoolArray, BoolArray]:
        """Counts a batch; returns the masks of its rows with a grade and with a score."""
        judged: BoolArray = np.any(batch.grades >= 0, axis=1)
        ranked: BoolArray = np.any(np.isfinite(batch.scores), axis=1)
        self._judged += int(judged.sum())
        self._ranked += int(ranked.sum())
        self.missing += int((judged & ~ranked).sum())
        self.unjudged += int((ranked & ~judged).sum())
        return judged, ranked

    def report(self, missing: Missing) -> None:
        """Raises InvalidInputError, or warns, of rows of one side alone."""
        _report((self.missing, self._judged), (self.unjudged, self._ranked), missing)


def _report(of_qrels: tuple[int, int], of_run: tuple[int, int], missing: Missing) -> None:
    """Raises InvalidInputError, or warns; of each side the queries that it has alone, and all."""
    found = [
        f"{alone:,} of {n:,} queries of the {side} are not in the {other}"
        for (alone, n), side, other in ((of_qrels, "qrels", "run"), (of_run, "run", "qrels"))
        if alone
    ]
    if not found or missing not in ("warn", "error"):
        return
    zero = ', "zero" to measure those of the qrels as empty rankings' if of_qrels[0] else ""
    text = f'{", ".join(found)}. Set missing="skip" to leave them out silently{zero}'
    if missing == "error":
        raise InvalidInputError(f"{text}.")
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").startswith("evaluator."):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{text}.", MissingQueriesWarning, stacklevel=level)

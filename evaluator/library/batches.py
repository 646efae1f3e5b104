"""Queries in batches that fit the cache: arrays with one column per candidate."""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from math import nan
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evaluator.core.measures import MAX_GRADE, InvalidInputError
from evaluator.core.measures.dense import TieOrder
from evaluator.core.measures.lists import WHOLE_LIST
from evaluator.core.measures.order import exact_order
from evaluator.core.types.records import FloatArray, IntArray

Grades = Mapping[str, float]
"""Grades of one query by candidate id."""

Scores = Mapping[str, float]
"""Scores of one query by candidate id."""

Qrels = Mapping[str, Grades]
Run = Mapping[str, Scores]

_CELLS: Final = 1 << 15
"""Approximate number of candidates of a batch."""

_NO_TABLE: Final = "{} must be [n_queries, n_candidates] of numbers, NaN without one."


class QueryBatch(Struct, frozen=True):
    """Some of the queries; `queries` are their positions among all queries.

    `scores` and `grades` are those of `dense_lists`. `names` are the ids of queries, if they have
    any. `ids` has the candidate id of each column by query, if requested.
    """

    queries: IntArray | slice
    scores: FloatArray
    grades: FloatArray
    tie_order: TieOrder | None = None
    names: Sequence[str] = ()
    ids: Sequence[Sequence[str]] | None = None


def batches_of_arrays(grades: Any, scores: Any) -> Iterator[QueryBatch]:
    """Batches of two arrays, `[n_queries, n_candidates]`, or two lists of lists.

    Raises:
        InvalidInputError: for invalid arrays or lists.
    """
    are_arrays = isinstance(scores, np.ndarray) and isinstance(grades, np.ndarray)
    if are_arrays:
        grades, scores = _array(grades, "qrels"), _array(scores, "run")
        _check_shapes(grades, scores)
    n = len(scores)
    if len(grades) != n:
        raise InvalidInputError(
            f"qrels have {len(grades)} lists and the run {n}; give one per query."
        )
    step = max(1, _CELLS // max(1, scores.shape[1] if are_arrays else _longest(scores)))
    for first in range(0, n, step):
        part = slice(first, min(first + step, n))
        if are_arrays:
            batch = QueryBatch(part, scores[part], grades[part])
        else:  # an array at a time
            batch = QueryBatch(part, _padded(scores[part], "run"), _padded(grades[part], "qrels"))
            _check_shapes(batch.grades, batch.scores)
        _check(batch, range(first, n))
        yield batch


def _array(given: NDArray[Any], name: str) -> FloatArray:
    try:
        return np.ascontiguousarray(np.ma.filled(np.asanyarray(given, np.float64), nan))
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{name} is an array of {given.dtype}; it must be of numbers."
        ) from None


def _longest(rows: Sequence[Sequence[float]]) -> int:
    try:
        return max(map(len, rows), default=0)
    except TypeError:
        raise InvalidInputError(_NO_TABLE.format("run")) from None


def _padded(rows: Sequence[Sequence[float]], name: str) -> FloatArray:
    """Pads shorter lists with NaN: `[n_rows, width]`."""
    try:
        packed = _packed(rows, len(rows[0]))
        if packed is not None:
            return packed
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter(chain.from_iterable(rows), np.float64, int(lengths.sum()))
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(_NO_TABLE.format(name)) from None
    padded = np.full((len(rows), int(lengths.max())), nan)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = flat
    return padded


def _packed(rows: Sequence[Sequence[float]], width: int) -> FloatArray | None:
    """The array of rows with *width* numbers each, None for other rows; faster than `_padded`."""
    pack = struct.Struct(f"{width}d").pack
    try:
        packed = bytearray().join([pack(*row) for row in rows])
    except (struct.error, OverflowError):
        return None
    return np.frombuffer(packed).reshape(len(rows), width)


def _check_shapes(grades: FloatArray, scores: FloatArray) -> None:
    if scores.ndim != 2 or scores.shape != grades.shape:
        raise InvalidInputError(
            f"grades {grades.shape} and scores {scores.shape} must both be [n_queries, "
            "n_candidates], one column per candidate. Pad short lists with NaN in both."
        )


def _check(batch: QueryBatch, query_ids: Sequence[Any]) -> None:
    if batch.scores.shape[1] > WHOLE_LIST:
        raise InvalidInputError(
            f"query {query_ids[0]!r} has {batch.scores.shape[1]:,} candidates; at most "
            f"{WHOLE_LIST:,} are measured. Give the first ones of each ranking."
        )
    bad = (batch.grades > MAX_GRADE) | np.isinf(batch.scores)
    if bad.any():
        row = int(bad.any(axis=1).argmax())
        raise InvalidInputError(
            f"query {query_ids[row]!r} has a score or a grade that cannot be "
            f"used: scores must be finite, grades at most {MAX_GRADE}."
        )


def batches_of_dicts(
    query_ids: Sequence[str],
    judged: Sequence[Grades],
    rankings: Sequence[Scores],
    *,
    with_ids: bool = False,
) -> Iterator[QueryBatch]:
    """Batches of queries with lists of similar length; the arguments are parallel.

    The first columns are the ranked candidates, the next ones those judged but not ranked.

    Raises:
        InvalidInputError: names an invalid query.
    """
    lengths = np.fromiter(map(len, rankings), np.int64, len(rankings))
    order = np.argsort(lengths, kind="stable")
    first = 0
    while first < len(order):
        step = max(1, _CELLS // max(1, int(lengths[order[first]])))
        longest = int(lengths[order[min(first + step, len(order)) - 1]])
        queries = order[first : first + max(1, _CELLS // max(1, longest))]
        first += len(queries)
        places = queries.tolist()
        names = [query_ids[place] for place in places]
        batch = _batch(
            queries,
            names,
            [rankings[place] for place in places],
            [judged[place] for place in places],
            lengths[queries],
            with_ids=with_ids,
        )
        _check(batch, names)
        yield batch


def _batch(
    queries: IntArray,
    names: Sequence[str],
    rankings: Sequence[Scores],
    judged: Sequence[Grades],
    lengths: IntArray,
    *,
    with_ids: bool,
) -> QueryBatch:
    total = int(lengths.sum())
    scores = _numbers(names, (ranking.values() for ranking in rankings), total)
    grades = _grades(names, rankings, judged, total)
    if np.isnan(scores).any():
        raise InvalidInputError(_not_numbers(names))
    missing = _never_ranked(rankings, judged, int(np.count_nonzero(grades == grades)))  # noqa: PLR0124  # false for NaN alone
    more = np.fromiter(map(len, missing), np.int64, len(missing))
    width = int((lengths + more).max(initial=1))
    if (lengths == width).all():
        shape = (len(queries), width)
        padded_scores, padded_grades = scores.reshape(shape), grades.reshape(shape)
    else:
        columns = np.arange(width)
        inside = columns < lengths[:, None]
        padded_scores = np.full(inside.shape, nan)
        padded_scores[inside] = scores
        padded_grades = np.full(inside.shape, nan)
        padded_grades[inside] = grades
        behind = (columns >= lengths[:, None]) & (columns < (lengths + more)[:, None])
        rest = [[of[name] for name in some] for of, some in zip(judged, missing, strict=True)]
        padded_grades[behind] = _numbers(names, rest, int(more.sum()))
    ids = None
    if with_ids:
        ids = [[*ranking, *some] for ranking, some in zip(rankings, missing, strict=True)]
    by_ids = partial(_by_ids, rankings, width)
    return QueryBatch(queries, padded_scores, padded_grades, by_ids, names, ids)


def _grades(
    names: Sequence[str], rankings: Sequence[Scores], judged: Sequence[Grades], n: int
) -> FloatArray:
    """The grades of all ranked candidates, NaN if unjudged: `[n]`."""
    if sum(map(len, judged)) >= n:  # faster if all are judged
        with suppress(KeyError):
            return _numbers(names, map(map, (of.__getitem__ for of in judged), rankings), n)
    return _numbers(names, map(map, (of.get for of in judged), rankings, repeat(repeat(nan))), n)


def _never_ranked(
    rankings: Sequence[Scores], judged: Sequence[Grades], n_found: int
) -> list[list[str]]:
    """The candidates of each query that were judged but not ranked."""
    if n_found == sum(map(len, judged)):
        return [[]] * len(judged)
    return [
        [name for name in of if name not in ranking]
        for of, ranking in zip(judged, rankings, strict=True)
    ]


def _numbers(names: Sequence[str], parts: Iterable[Iterable[Any]], n: int) -> FloatArray:
    """All numbers, concatenated: `[n]`."""
    try:
        return np.fromiter(chain.from_iterable(parts), np.float64, n)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(_not_numbers(names)) from None


def _not_numbers(names: Sequence[str]) -> str:
    return (
        f"a score or a grade of one of the queries {names[0]!r} to {names[-1]!r} is not a number. "
        "Leave out candidates without one."
    )


def _by_ids(rankings: Sequence[Scores], width: int, rows: IntArray) -> IntArray:
    """The columns of rows, best first, ties by id descending: `[n_rows, width]`."""
    positions = np.tile(np.arange(width), (len(rows), 1))
    for place, row in enumerate(rows.tolist()):
        order = exact_order(list(map(str, rankings[row])), list(rankings[row].values()))
        positions[place, : len(order)] = order
    return positions

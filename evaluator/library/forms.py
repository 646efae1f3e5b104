"""Readers of qrels and runs: mappings, frames, TREC files, arrays."""

import gzip
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from evaluator.core.measures import MAX_GRADE, InvalidInputError
from evaluator.library.batches import Qrels, Run

QUERY_COLUMNS: Final = ("query_id", "q_id", "qid")
CANDIDATE_COLUMNS: Final = ("candidate_id", "doc_id", "docid", "docno")
GRADE_COLUMNS: Final = ("grade", "relevance", "rel", "label", "score")
SCORE_COLUMNS: Final = ("score",)

_FORMS: Final = (
    "a mapping {query_id: {candidate_id: number}}, a pandas or polars frame, the path of a TREC "
    "file, or an array [n_queries, n_candidates]"
)

_REMEDY: Final = "Ids are compared as they are: give both sides the same, e.g. with str()."

Better = Callable[[float, float], float]
"""Selects one of two numbers of the same candidate."""


def is_arrays(qrels: Any, run: Any) -> bool:
    """Whether both are arrays or lists of lists. Raises InvalidInputError if only one is."""
    kinds = [isinstance(one, (np.ndarray, list, tuple)) for one in (qrels, run)]
    if kinds[0] != kinds[1]:
        raise InvalidInputError(
            "either both qrels and run must be arrays, or none: in arrays a column is a candidate."
        )
    return kinds[0]


def qrels_of(given: Any) -> Qrels:
    """Grades by query and candidate, the last one of each. Raises InvalidInputError."""
    return _mapping(
        given, "qrels", GRADE_COLUMNS, fields=(4, 0, 2, 3), better=lambda _, later: later
    )


def run_of(given: Any) -> Run:
    """Scores by query and candidate, the best one of each. Raises InvalidInputError."""
    return _mapping(given, "run", SCORE_COLUMNS, fields=(6, 0, 2, 4), better=max)


def _mapping(
    given: Any,
    name: str,
    number_columns: Sequence[str],
    *,
    fields: tuple[int, int, int, int],
    better: Better,
) -> Mapping[str, Mapping[str, float]]:
    if isinstance(given, Mapping):
        _check_mapping(given, name)
        return given
    if isinstance(given, (str, PathLike)):
        return _by_query(_trec_rows(Path(fspath(given)), name, fields), better)
    if hasattr(given, "to_numpy") and hasattr(given, "columns"):
        try:
            return _by_query(_frame_rows(given, name, number_columns), better)
        except TypeError:
            raise InvalidInputError(
                f"the frame of the {name} has a value that is not a number. Leave out rows without "
                "one."
            ) from None
    raise InvalidInputError(f"{name} is of type {type(given).__name__}; give {_FORMS}.")


def _check_mapping(given: Mapping[Any, Any], name: str) -> None:
    """Raises InvalidInputError for a query without a mapping."""
    for query_id, of_query in given.items():
        if not isinstance(of_query, Mapping):
            raise InvalidInputError(
                f"{name} has a {type(of_query).__name__} for the query {query_id!r}; it must be "
                "{candidate_id: number}."
            )


def check_ids(qrels: Qrels, run: Run) -> None:
    """Raises InvalidInputError without a common query, or where types of candidate ids differ."""
    if not qrels or not run:
        return
    common = False
    for query_id, judged in qrels.items():
        if (ranked := run.get(query_id)) is None:
            continue
        common = True
        _check_types(query_id, ("qrels", judged), ("the run", ranked))
    if not common:
        raise InvalidInputError(
            f"none of the {len(qrels):,} query ids of qrels ({_shown(qrels)}) is among the "
            f"{len(run):,} of the run ({_shown(run)}). {_REMEDY}"
        )


def _check_types(query_id: Any, one: tuple[str, Any], other: tuple[str, Any]) -> None:
    """Raises InvalidInputError for candidate ids of a query that share no id and no type."""
    if one[1] and other[1] and one[1].keys().isdisjoint(other[1]):
        kinds = [frozenset(map(type, ids)) for _, ids in (one, other)]
        if not kinds[0] & kinds[1]:
            raise InvalidInputError(
                f"the candidate ids of query {query_id!r} are {_shown(one[1])} in {one[0]} and "
                f"{_shown(other[1])} in {other[0]}. {_REMEDY}"
            )


def check_ids_of(name: str, given: Any, qrels: Qrels) -> None:
    """Raises InvalidInputError for a mapping by query and candidate whose ids are not of qrels."""
    check_keys(name, given, qrels)
    for query_id, of_query in (given or {}).items():
        _check_types(query_id, ("qrels", qrels.get(query_id)), (name, of_query))


def check_keys(name: str, given: Any, query_ids: Collection[Any]) -> None:
    """Raises InvalidInputError for a mapping by query that has none of the queries."""
    if isinstance(given, Mapping) and given and query_ids and given.keys().isdisjoint(query_ids):
        raise InvalidInputError(
            f"none of the {len(given):,} query ids of {name} ({_shown(given)}) is among the "
            f"{len(query_ids):,} of qrels ({_shown(query_ids)}). {_REMEDY}"
        )


def least_relevant(rel: Any) -> float | None:
    """The least relevant grade, None for any above 0. Raises InvalidInputError for other values."""
    if rel is None or (isinstance(rel, Real) and 0 < float(rel) <= MAX_GRADE):
        return None if rel is None else float(rel)
    raise InvalidInputError(f"rel is {rel!r}; it must be a grade above 0, {MAX_GRADE} at most.")


def _shown(ids: Iterable[Any]) -> str:
    first = next(iter(ids))
    return f"of type {type(first).__name__}, the first is {first!r:.100}"


def _by_query(
    rows: Iterable[tuple[str, str, float]], better: Better
) -> dict[str, dict[str, float]]:
    by_query: dict[str, dict[str, float]] = {}
    for query_id, candidate_id, number in rows:
        numbers = by_query.setdefault(query_id, {})
        known = numbers.get(candidate_id)
        numbers[candidate_id] = number if known is None else better(known, number)
    return by_query


def _frame_rows(
    frame: Any, name: str, number_columns: Sequence[str]
) -> Iterable[tuple[str, str, float]]:
    """The rows of a frame of pandas or polars."""
    present = list(frame.columns)
    columns = []
    for names in (QUERY_COLUMNS, CANDIDATE_COLUMNS, number_columns):
        column = next((one for one in names if one in present), None)
        if column is None:
            raise InvalidInputError(
                f"the frame of the {name} has the columns {', '.join(map(str, present))}, and none "
                f"called {' or '.join(names)}. Rename one."
            )
        if present.count(column) > 1:
            raise InvalidInputError(
                f"the frame of the {name} has several columns {column}. Keep one of them."
            )
        columns.append(frame[column].to_list())
    query_ids, candidate_ids, cells = columns
    numbers: list[Any] = [None if is_missing(cell) else cell for cell in cells]
    return zip(_texts(query_ids, name), _texts(candidate_ids, name), numbers, strict=True)


def _texts(ids: list[Any], name: str) -> Iterable[str]:
    """Ids as texts; a column of whole numbers with a missing one had become floats."""
    if set(map(type, ids)) <= {str, int}:
        return map(str, ids)
    if any(map(is_missing, ids)):
        raise InvalidInputError(f"the frame of the {name} has a row without an id. Leave it out.")
    are_whole = all(isinstance(one, float) and one.is_integer() for one in ids)
    return map(str, map(int, ids) if are_whole else ids)


def is_missing(given: Any) -> bool:
    """Whether a cell of a frame is None, NaN, or pandas' NA or NaT."""
    is_nan = isinstance(given, float) and given != given  # noqa: PLR0124  # true for NaN alone
    return given is None or is_nan or type(given).__name__ in {"NAType", "NaTType"}


def _trec_rows(
    path: Path, name: str, fields: tuple[int, int, int, int]
) -> Iterable[tuple[str, str, float]]:
    """Query, candidate and number of each line."""
    n_fields, query, candidate, number = fields
    shape = "query 0 candidate grade" if name == "qrels" else "query Q0 candidate rank score tag"
    opener: Callable[..., TextIO] = gzip.open if path.suffix == ".gz" else open
    if not path.is_file():
        raise InvalidInputError(f"{path} is not a file. Give the path of a TREC {name} file.")
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for line_number, line in enumerate(lines, start=1):
                words = line.split()
                if not words:
                    continue
                try:
                    if len(words) != n_fields:
                        raise ValueError(words)
                    yield words[query], words[candidate], float(words[number])
                except ValueError:
                    raise InvalidInputError(
                        f"{path}, line {line_number} is not a line of a TREC {name} file: it must "
                        f"be {shape}."
                    ) from None
    except (OSError, EOFError, UnicodeError, zlib.error) as error:
        raise InvalidInputError(f"{path} cannot be read: {error}. Write it again.") from None

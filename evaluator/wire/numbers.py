"""The numbers of many rows at once: JSON text -> one flat array, or None where anything is odd.

A list of numbers is compared with its *shape*: its text without whitespace and without the
bytes that numbers are made of, so only brackets and commas of the right count are left.
Between two of those stands one number or nothing; simdjson refuses what is no number, and
the count of all numbers shows whether there was nothing somewhere. The reader of the rows
has already checked the grammar of every text.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from operator import is_, mul
from typing import Final, NamedTuple, TypeVar, cast

import numpy as np
import simdjson
from msgspec import Raw

from evaluator.core.strings import PackedStrings
from evaluator.core.types import SERVED, FloatArray
from evaluator.wire.fast import ABSENT, RankingRow
from evaluator.wire.ids import n_ids, read_ids
from evaluator.wire.models import MAX_FEATURES, MAX_SCORERS, is_scorer_name

_NUMBER_BYTES: Final = b"0123456789.eE+- \t\r\n"
_SERVED_ONLY: Final = (SERVED,)
_ZERO: Final = np.uint8(ord("0"))
_EIGHT_TRUE: Final = np.uint64(0x0101010101010101)
Text = Raw | bytes
T = TypeVar("T")
_is_absent: Final = partial(is_, ABSENT)
_MAX_REMEMBERED_TABLES: Final = 128


class Numbers(NamedTuple):
    """Of rows: candidates, names of rankers, and what the columns want of numbers."""

    counts: list[int]
    ids: PackedStrings
    rankers: list[tuple[str, ...]]
    ranks: dict[int, list[int]]  # by index of the row
    scores: FloatArray
    n_lists: int  # the sum of `n_lists` over the rows


def read_numbers(rows: Sequence[RankingRow], parser: simdjson.Parser) -> Numbers | None:
    """Reads the numbers of all rows; None if those of any row are not sound."""
    ids = read_ids([row.candidate_ids for row in rows])
    if ids is None:
        return None
    counts = ids.counts
    rankers = [_rankers(tuple(row.scorers)) if row.scorers else _SERVED_ONLY for row in rows]
    ranks = {index: row.ranks for index, row in enumerate(rows) if row.ranks is not None}
    if () in rankers or any(len(listed) != counts[index] for index, listed in ranks.items()):
        return None
    n_feature_lists = _n_sound_features(rows, counts, parser)
    if n_feature_lists is None:
        return None
    scores = _read_scores(rows, counts, rankers, ranks, parser)
    if scores is None:
        return None
    n_unscored = sum(row.scores is ABSENT for row in rows) if ranks else 0
    n_all_lists = n_feature_lists + sum(map(len, rankers)) + len(ranks) - n_unscored
    return Numbers(counts, ids.texts, rankers, ranks, scores, n_all_lists)


def n_lists(row: RankingRow) -> int:
    """Number of JSON arrays in the numbers of a sound row."""
    n_of_features = 0 if row.features is ABSENT else n_ids(row.candidate_ids) + 1
    n_of_scores = (row.scores is not ABSENT) + len(row.scorers or ())
    return n_of_features + n_of_scores + (row.ranks is not None)


def _read_scores(
    rows: Sequence[RankingRow],
    counts: Sequence[int],
    rankers: Sequence[tuple[str, ...]],
    ranks: Mapping[int, list[int]],
    parser: simdjson.Parser,
) -> FloatArray | None:
    """All scores in the order of the columns; NaN for a row that has ranks and no scores."""
    served: list[Text] = [row.scores for row in rows]
    unscored = [index for index, text in enumerate(served) if text is ABSENT]
    for index in unscored:
        if index not in ranks:
            return None
        served[index] = _zeros(counts[index])
    if rankers and rankers.count(rankers[0]) == len(rankers):
        named = [[(row.scorers or {})[name] for row in rows] for name in rankers[0][1:]]
        texts = list(chain.from_iterable(zip(served, *named, strict=True)))
        sizes = list(chain.from_iterable(zip(*[counts] * len(rankers[0]), strict=True)))
    else:
        texts, sizes = [], []
        for row, text, names, n in zip(rows, served, rankers, counts, strict=True):
            texts.append(text)
            if row.scorers:
                texts += [row.scorers[name] for name in names[1:]]
            sizes += [n] * len(names)
    scores = _read_lists(texts, sizes, parser)
    if scores is not None and unscored:
        row_sizes = np.array([n * len(names) for n, names in zip(counts, rankers, strict=True)])
        starts = np.cumsum(row_sizes) - row_sizes
        for index in unscored:
            scores[starts[index] : starts[index] + counts[index]] = np.nan
    return scores


def _read_lists(
    texts: Sequence[Text], sizes: Sequence[int], parser: simdjson.Parser
) -> FloatArray | None:
    """The numbers of lists of known sizes, one list after the other, -0.0 as 0.0."""
    if 0 in sizes and not _empty_ones_are_empty(texts, sizes):
        return None
    joined = b",".join(texts)
    if joined.translate(None, _NUMBER_BYTES) != b",".join(map(_list_shapes.__getitem__, sizes)):
        return None
    flat = _read_flat(joined, parser)
    if flat is None or len(flat) != sum(sizes):
        return None
    return flat + 0.0  # -0.0 + 0.0 is 0.0; a copy, for the buffer is simdjson's


def _empty_ones_are_empty(texts: Sequence[Text], sizes: Sequence[int]) -> bool:
    """A list of none and a list of one have the same shape, so the former is compared whole."""
    return all(n or bytes(text) == b"[]" for text, n in zip(texts, sizes, strict=True))


def _read_flat(joined: bytes, parser: simdjson.Parser) -> FloatArray | None:
    """All numbers of comma-separated nested lists, or None where one is no finite float64."""
    try:
        lists = cast("simdjson.Array", parser.parse(b"[%b]" % joined))
        return np.frombuffer(lists.as_buffer(of_type="d"))
    except (ValueError, RuntimeError):
        return None


def _n_sound_features(
    rows: Sequence[RankingRow], counts: Sequence[int], parser: simdjson.Parser
) -> int | None:
    """Number of lists in all features; None if not all are rectangular, numeric and finite."""
    texts = [row.features for row in rows]
    names = [row.feature_names for row in rows]
    if any(map(_is_absent, texts)):
        given = [index for index, text in enumerate(texts) if text is not ABSENT]
        rows, texts, names = _picked(rows, given), _picked(texts, given), _picked(names, given)
        counts = _picked(counts, given)
    widths = [
        _n_features(text) if listed is None else len(listed)
        for text, listed in zip(texts, names, strict=True)
    ]
    n_of_features = len(texts) + sum(counts)
    if 0 in counts and not _empty_ones_are_empty(texts, counts):
        return None
    if 0 in widths or max(widths, default=1) > MAX_FEATURES:
        return None
    joined = b",".join(texts)
    shapes = map(_table_shapes.__getitem__, zip(counts, widths, strict=True))
    if joined.translate(None, _NUMBER_BYTES) != b",".join(shapes):
        return None
    if 1 not in widths and _is_surely_finite(joined):
        return n_of_features  # every row has a comma, so its grammar leaves no place empty
    flat = _read_flat(joined, parser)
    if flat is None and len(rows) > 1:  # what simdjson refuses may have needed no reading
        one_by_one = zip(rows, counts, strict=True)
        alone = [_n_sound_features([row], [n], parser) for row, n in one_by_one]
        return None if None in alone else n_of_features
    return (
        n_of_features if flat is not None and len(flat) == sum(map(mul, counts, widths)) else None
    )


def _picked(values: Sequence[T], indices: Sequence[int]) -> list[T]:
    return [values[index] for index in indices]


def _n_features(text: Text) -> int:
    """Length of the first row, by its commas; 1 also for an empty row."""
    return bytes(text).partition(b"]")[0].count(b",") + 1


def _is_surely_finite(joined: bytes) -> bool:
    """Whether no number can be too large: no positive exponent, no endless run of digits."""
    if b"E" in joined or (b"e" in joined and joined.count(b"e") != joined.count(b"e-")):
        return False
    codes = np.frombuffer(joined, dtype=np.uint8)[: len(joined) // 64 * 64]
    is_digit = (codes - _ZERO) < 10  # unsigned: smaller codes wrap around
    of_8 = is_digit.view(np.uint64) == _EIGHT_TRUE
    of_64 = of_8.view(np.uint64) == _EIGHT_TRUE
    # the shortest overflow, 309 digits in a row, would fill an aligned block of 64
    return not of_64.any()


@lru_cache(maxsize=1024)
def _rankers(names: tuple[str, ...]) -> tuple[str, ...]:
    """The rankers of a row with these scorers, or () if it cannot have them."""
    if len(names) > MAX_SCORERS or not all(map(is_scorer_name, names)):
        return ()
    return (SERVED, *sorted(names))


class _ListShapes(dict[int, bytes]):
    """The shape of a list by its length; a dict, for nothing is quicker to look up."""

    def __missing__(self, n_numbers: int) -> bytes:
        shape = self[n_numbers] = b"[%b]" % (b"," * (n_numbers - 1))
        return shape


class _TableShapes(dict[tuple[int, int], bytes]):
    """The shape of a list of lists by its length and theirs."""

    def __missing__(self, n_rows_and_numbers: tuple[int, int]) -> bytes:
        n_rows, n_numbers = n_rows_and_numbers
        if len(self) >= _MAX_REMEMBERED_TABLES:
            self.clear()
        shape = self[n_rows_and_numbers] = b"[%b]" % b",".join([_list_shapes[n_numbers]] * n_rows)
        return shape


_list_shapes = _ListShapes()
_table_shapes = _TableShapes()


@lru_cache(maxsize=128)
def _zeros(n_numbers: int) -> bytes:
    return b"[%b]" % b",".join([b"0"] * n_numbers)

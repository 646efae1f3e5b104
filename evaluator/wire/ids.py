"""The candidate ids of many rows at once: JSON text -> one column, or None where anything is odd.

The reader of the rows has checked the grammar of every text, escapes included, but neither its
shape nor its UTF-8; the latter is asked of whole messages elsewhere.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Raw
from numpy.typing import NDArray

from evaluator.core.strings import WORD_BYTES, PackedStrings
from evaluator.wire.models import MAX_CANDIDATES, MAX_ID_BYTES

SURE_BYTES: Final = 64
"""Ids up to this length are read without a closer look."""

_Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
_decode: Final = msgspec.json.Decoder(Annotated[list[_Id], Meta(max_length=MAX_CANDIDATES)]).decode
_QUOTE, _COMMA, _SPACE, _OPEN, _CLOSE = b'", []'


class Ids(NamedTuple):
    """How many ids each row has, and all ids, row after row."""

    counts: list[int]
    texts: PackedStrings


def read_ids(rows: Sequence[Raw]) -> Ids | None:
    """Reads arrays of ids; None if any is not one."""
    quick = _read_quickly(rows)
    return quick if quick is not None else _read_one_by_one(rows)


def n_ids(text: Raw) -> int:
    """Number of ids in an array that `read_ids` takes."""
    ids = read_ids([text])
    return 0 if ids is None else len(ids.texts)


def _read_one_by_one(rows: Sequence[Raw]) -> Ids | None:
    try:
        lists = [_decode(text) for text in rows]
    except (msgspec.MsgspecError, ValueError):
        return None
    ids = list(chain.from_iterable(lists))
    if any(len(text) > SURE_BYTES and len(text.encode()) > MAX_ID_BYTES for text in ids):
        return None
    return Ids(list(map(len, lists)), PackedStrings.of(ids))


def _read_quickly(rows: Sequence[Raw]) -> Ids | None:
    """Cuts strings out where quotes are. None unless each text is `["a","b"]` or `["a", "b"]`."""
    joined = b"".join(rows)
    if b"\\" in joined:
        return None
    codes = np.frombuffer(joined, np.uint8)
    quotes = np.flatnonzero(codes == _QUOTE)
    opens, closes = quotes[0::2], quotes[1::2]
    sizes = np.fromiter((len(memoryview(text)) for text in rows), np.int64, len(rows))
    row_ends = np.cumsum(sizes)
    ends = np.searchsorted(quotes, row_ends) // 2  # of the ids of each row
    counts = np.diff(ends, prepend=0)
    lengths = closes - opens - 1
    if not (
        counts.max(initial=0) <= MAX_CANDIDATES
        and lengths.min(initial=1) >= 1
        and lengths.max(initial=1) <= SURE_BYTES
        and _edges_are_plain(codes, opens, closes, row_ends - sizes, row_ends, ends, counts)
        and _gaps_are_plain(codes, opens, closes, ends[counts > 0])
    ):
        return None
    return Ids(counts.tolist(), PackedStrings(joined + bytes(WORD_BYTES), opens + 1, lengths))


def _edges_are_plain(
    codes: NDArray[np.uint8],
    opens: NDArray[np.int64],
    closes: NDArray[np.int64],
    row_starts: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    ends: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> bool:
    """Whether each row begins `["` and ends `"]`, or is `[]`."""
    some = counts > 0
    first, last = (ends - counts)[some], ends[some] - 1
    return bool(
        (codes[row_starts] == _OPEN).all()
        and (codes[row_ends - 1] == _CLOSE).all()
        and ((row_ends - row_starts)[~some] == 2).all()
        and (opens[first] == row_starts[some] + 1).all()
        and (closes[last] == row_ends[some] - 2).all()
    )


def _gaps_are_plain(
    codes: NDArray[np.uint8],
    opens: NDArray[np.int64],
    closes: NDArray[np.int64],
    row_ends: NDArray[np.int64],
) -> bool:
    """Whether a comma, or everywhere a comma and a space, is between the ids of a row."""
    within = np.ones(len(opens), bool)
    within[row_ends - 1] = False  # nothing follows the last id of a row
    after = closes[within] + 1
    gaps = opens[np.flatnonzero(within) + 1] - after
    if not len(gaps):
        return True
    if not (codes[after] == _COMMA).all() or gaps.min() != gaps.max():
        return False
    return bool(gaps[0] == 1 or (gaps[0] == 2 and (codes[after + 1] == _SPACE).all()))

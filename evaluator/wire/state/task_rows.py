"""State of a task as rows of tables. Integers are big-endian where order counts.

Tables, with their keys and values:

- `queries`: offset of the first of some rankings -> these rankings; see `ranking_rows.py`.
- `starts`: the keys of `queries` -> nothing.
- `judgments`: number of a row -> judgments, and the results summed for their queries; see
  `judgment_rows.py`.
- `judged`: number of the first row of a commit -> the queries of its judgments.
- `names`: key, a hash -> the queries of the key, `KEY_VERSION`, unless the key has named
  one query only, once.
- `renamed`: offset of a ranking -> nothing, if its key may name other queries or was named again.
- `runs` and `entries`: number of a run of the timers -> its limits; times, offsets and keys of its
  queries.
- `early`: offset of a judgment -> event time, timestamp, key of the record, message.
- `totals`: stratum, also with a level of a segment -> sums; `windows`: start -> sums by stratum.
- `meta`: `head`, all the rest; `identity`, the owner of the state.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np

from evaluator.core.columns.key_hashes import NO_KEYS, KeyHashes
from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.event_time.timers import Entries, Run
from evaluator.core.join.changes import KEY_VERSION, Changes, Head, VersionsOfKeys
from evaluator.core.join.judgments import PendingJudgment
from evaluator.core.measures.exact_sums import StratumTotals, Sums
from evaluator.core.types.records import AnyStratum, JudgmentColumns, LevelStratum, Stratum
from evaluator.wire.messages.codec import decode_judgments
from evaluator.wire.reading import Count, Reader, Sum, checked_sums, refused_as
from evaluator.wire.records import Records
from evaluator.wire.state.heads import HeadRow, checked_head

Table = Literal[
    "queries",
    "starts",
    "judgments",
    "judged",
    "names",
    "renamed",
    "runs",
    "entries",
    "early",
    "totals",
    "windows",
    "meta",
]
TABLES: Final[tuple[Table, ...]] = get_args(Table)

Row = tuple[bytes, bytes | None]
"""Key and value; None deletes the row."""

HEAD: Final = b"head"
IDENTITY: Final = b"identity"
BEHIND_ALL: Final = b"\xff"
"""Greater than every key: offsets and times are not negative, other keys are text."""
FORMAT: Final = 12
"""Version of the layout of rows."""

_at: Final = struct.Struct(">q")
_early: Final = struct.Struct(">qqq")
_run: Final = struct.Struct("<qqqqq?")
_json: Final = msgspec.json.Encoder()


class StateDamaged(Exception):
    """Rows are damaged, or of another version, so the store must not be used."""


class SettingsChanged(StateDamaged):
    """The store is whole, and of the same task under other settings."""


SumsRow = tuple[Count, list[Sum], list[Sum]]
TotalsRow = tuple[SumsRow, SumsRow, SumsRow, Count, Count, Count]
_StratumRow = tuple[str, str, tuple[str, ...]]


class _TotalsKey(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    model: str
    variant: str
    rankers: tuple[str, ...]
    segment: str | None = None
    level: str | None = None


_CANNOT: Final = "a row cannot be read"
_head: Final[Reader[HeadRow]] = Reader(HeadRow, StateDamaged, _CANNOT)
_identity: Final[Reader[dict[str, Any]]] = Reader(dict[str, Any], StateDamaged, _CANNOT)
_totals_key: Final[Reader[_TotalsKey]] = Reader(_TotalsKey, StateDamaged, _CANNOT)
_totals: Final[Reader[TotalsRow]] = Reader(TotalsRow, StateDamaged, _CANNOT)
_window: Final[Reader[list[tuple[_StratumRow, SumsRow]]]] = Reader(
    list[tuple[_StratumRow, SumsRow]], StateDamaged, _CANNOT
)


# Writing


def rows_of(changes: Changes) -> Iterator[tuple[Table, Iterable[Row]]]:
    """The rows of changes, except of queries and `names`."""
    yield "renamed", ((row_key(offset), b"") for offset in changes.renamed)
    for number, run in changes.runs.items():
        key = row_key(number)
        yield "runs", [(key, None if run is None else _run_row(run[0]))]
        yield "entries", [(key, None if run is None else _entries_row(*run))]
    yield "early", ((row_key(at), _early_row(j)) for at, j in changes.early.items())
    yield "totals", ((stratum_row(s), _totals_row(totals)) for s, totals in changes.totals.items())
    yield "windows", ((row_key(at), _window_row(sums)) for at, sums in changes.windows.items())


def head_row(head: Head) -> bytes:
    """The value of the row `head`."""
    return _json.encode(head)


def row_key(number: int) -> bytes:
    """The key of a row that is found by an offset, a time, or its number."""
    return _at.pack(number)


def number_of(key: bytes) -> int:
    """The reverse of `row_key`."""
    return int(_at.unpack(key)[0])


def identity_row(identity: Mapping[str, object]) -> bytes:
    """The value of the row `identity`: names and values of the owner."""
    return json.dumps({"format": FORMAT, **identity}, sort_keys=True).encode()


def identity_differs(row: bytes, identity: Mapping[str, object]) -> list[str]:
    """The differences of the owner of a state from *identity*; empty if there is none."""
    try:
        found = _identity(row)
    except StateDamaged:
        return ["its identity cannot be read"]
    wanted = _identity(identity_row(identity))
    return [
        f"{name} is {found.get(name)!r}, not {wanted.get(name)!r}"
        for name in sorted({*found, *wanted})
        if found.get(name) != wanted.get(name)
    ]


def _run_row(run: Run) -> bytes:
    ends = run.earliest_ms, run.latest_ms, run.first_offset, run.last_offset
    return _run.pack(run.n_queries, *ends, run.release_only)


def _entries_row(run: Run, keys: KeyHashes) -> bytes:
    if run.entries is None:
        raise StateDamaged(f"run {run.number} was evicted before it was written")
    columns = (run.entries.times_ms, run.entries.offsets)
    return b"".join((*(column.astype("<i8").tobytes() for column in columns), keys.tobytes()))


def _early_row(judgment: PendingJudgment | None) -> bytes | None:
    if judgment is None:
        return None
    key = judgment.record_key
    length = -1 if key is None else len(key)
    head = _early.pack(judgment.event_ms, judgment.timestamp_ms, length)
    return head + (key or b"") + judgment.value


def stratum_row(stratum: AnyStratum) -> bytes:
    """The key of a row of `totals`."""
    return json.dumps(stratum).encode()


def _sums(sums: Sums) -> list[Any]:
    return [sums.queries, sums.units, sums.lacking]


def _totals_row(totals: StratumTotals | None) -> bytes | None:
    return None if totals is None else _json.encode(totals_document(totals))


def totals_document(totals: StratumTotals) -> list[Any]:
    """The totals of a stratum as plain lists of integers."""
    counts = (totals.settled_judged, totals.settled_silent, totals.settled_unjudged)
    return [*map(_sums, totals.sums()), *counts]


def totals_from(document: TotalsRow) -> StratumTotals:
    """The reverse of `totals_document`. Raises ValueError for impossible sums."""
    running, settled, squares, judged, silent, unjudged = document
    sums = [_sums_from(each) for each in (running, settled, squares)]
    return StratumTotals(sums[0], sums[1], sums[2], judged, silent, unjudged)


def _sums_from(row: SumsRow) -> Sums:
    queries, units, lacking = row
    return Sums(queries, checked_sums(units), checked_sums(lacking))


def _window_row(sums: Mapping[Stratum, Sums]) -> bytes | None:
    if not sums:
        return None
    return _json.encode([[stratum, _sums(each)] for stratum, each in sums.items()])


# Reading


def head_from(value: bytes) -> Head:
    """The head of the row `head`. Raises StateDamaged."""
    with refused_as(StateDamaged, _CANNOT):
        return checked_head(_head(value))


def run_from(key: bytes, value: bytes) -> Run:
    """A run on disk. Raises StateDamaged."""
    with refused_as(StateDamaged, _CANNOT):
        n_queries, earliest_ms, latest_ms, first, last, release_only = _run.unpack(value)
        number = number_of(key)
    if n_queries < 0:
        raise StateDamaged(f"run {number} has {n_queries} queries")
    return Run(
        number, None, n_queries, earliest_ms, latest_ms, first, last, release_only, on_disk=True
    )


def entries_from(value: bytes, n_queries: int) -> tuple[Entries, KeyHashes]:
    """The entries of a run, and their keys. Raises StateDamaged."""
    if len(value) != 32 * n_queries:
        raise StateDamaged(f"a run of {n_queries} queries has {len(value)} bytes")
    numbers = np.frombuffer(value, "<i8", 2 * n_queries).astype(np.int64)
    keys = np.frombuffer(value, "V16", offset=16 * n_queries) if n_queries else NO_KEYS
    rows = np.full(n_queries, -1, np.int64)
    return Entries(numbers[:n_queries], numbers[n_queries:], rows), keys


def versions_from(values: Sequence[bytes | None]) -> VersionsOfKeys:
    """The queries of each key. Raises StateDamaged."""
    rows = [value or b"" for value in values]
    counts = np.fromiter(map(len, rows), np.int64, len(rows)) // KEY_VERSION.itemsize
    with refused_as(StateDamaged, _CANNOT):
        return VersionsOfKeys(counts, np.frombuffer(b"".join(rows), KEY_VERSION))


def stratum_from(key: bytes) -> AnyStratum:
    """The stratum of a row of `totals`. Raises StateDamaged."""
    row = _totals_key(key)
    stratum = Stratum(row.model, row.variant, row.rankers)
    if row.segment is None or row.level is None:
        return stratum
    return LevelStratum(*stratum, row.segment, row.level)


def totals_row_from(value: bytes) -> StratumTotals:
    """The totals of a stratum. Raises StateDamaged."""
    with refused_as(StateDamaged, _CANNOT):
        return totals_from(_totals(value))


def window_from(key: bytes, value: bytes) -> tuple[int, dict[Stratum, Sums]]:
    """Start and sums of a window. Raises StateDamaged."""
    with refused_as(StateDamaged, _CANNOT):
        sums = {Stratum(*stratum): _sums_from(each) for stratum, each in _window(value)}
        return number_of(key), sums


def early_from(rows: Iterable[tuple[bytes, bytes]], *, task: int) -> list[PendingJudgment]:
    """The early judgments, in offset order. Raises StateDamaged."""
    found = []
    with refused_as(StateDamaged, _CANNOT):
        for place, row in rows:
            event_ms, timestamp_ms, length = _early.unpack_from(row)
            end = 24 + max(length, 0)
            key = None if length < 0 else row[24:end]
            found.append((number_of(place), event_ms, timestamp_ms, key, row[end:]))
    offsets, event_times, timestamps, keys, values = list(zip(*found, strict=True)) or [()] * 5
    columns = decoded_judgments(task, offsets, keys, values, timestamps)
    return [PendingJudgment.of(columns, row, event_times[row]) for row in range(len(offsets))]


def decoded_judgments(
    task: int,
    offsets: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes],
    timestamps_ms: Sequence[int],
) -> JudgmentColumns:
    """Stored messages, which stay well-formed with any new limit of skew. Raises StateDamaged."""
    end = offsets[-1] + 1 if offsets else 0
    records = Records.of("judgments", task, offsets, keys, values, timestamps_ms, end)
    columns = decode_judgments(records, max_future_skew_ms=MAX_TIMESTAMP_MS)
    if n_damaged := len(offsets) - len(columns):
        raise StateDamaged(f"{n_damaged} stored messages cannot be decoded")
    return columns

"""Decoding of records of `settled`: settled queries and watermark records."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from math import nan
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.measures import MAX_GRADE, UNITS_PER_ONE, MeasureSet
from evaluator.core.online.ordered_merge import NO_FEATURES, SettledQuery
from evaluator.core.online.watched_queries import WatchedQueries
from evaluator.core.types.candidates import CandidateKind, Described, Graph
from evaluator.core.types.records import FloatArray, IntArray, LoggedQuery, WatermarkRecord
from evaluator.wire.outputs.watched_decoder import WatchedDecoder, WatermarkRows, merged
from evaluator.wire.reading import Count, Reader, refused_as

MAX_SETTLED_BYTES: Final = 16 << 20
_CANNOT: Final = "a record of settled cannot be read"
_Value = Annotated[float, msgspec.Meta(ge=-1024, le=1 << 20)]
"""Values are in [0, 1]; far larger numbers are refused."""
_Propensity = Annotated[float, msgspec.Meta(gt=0, le=1)]


class SettledUnreadable(ValueError):
    """A record of `settled` cannot be read; the message has the reason."""


class _Graph(msgspec.Struct):
    type: str
    text: str
    n_nodes: Count
    n_edges: Count


class _OrderPosition(msgspec.Struct):
    """Position of a settled query in the order; a watermark record has no settled time."""

    trace_id: str = ""
    node_id: str = ""
    settled_time_ms: int | None = None


class _Query(msgspec.Struct):
    """Members of a settled query or watermark record that alarms read, in the order of writing.

    Each further member with a default would add a tenth to the time of decoding.
    """

    n: Count
    task: Count
    trace_id: str = ""
    node_id: str = ""
    event_time_ms: Count = 0
    settled_time_ms: int = -1
    model: str = ""
    variant: str = ""
    segments: dict[str, str] = {}
    grades: dict[str, Annotated[float, msgspec.Meta(ge=0, le=MAX_GRADE)]] = {}
    values: dict[str, dict[str, _Value]] = {}
    silent: bool = False
    watermark_ms: int | None = None


class _Record(_Query):
    """The same, with the members that learning needs."""

    exposed: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,250}$")] | None = None
    logged: dict[str, tuple[Annotated[int, msgspec.Meta(ge=1)], _Propensity | None]] = {}
    sources: dict[str, Count] | None = None
    candidate_ids: list[str] = []
    feature_names: tuple[str, ...] | None = None
    features: list[list[float]] = []
    propensities: list[_Propensity] | None = None
    candidate_kind: CandidateKind | None = None
    query: str = ""
    descriptions: list[str] = []
    graphs: list[_Graph] = []


def _reader(kind: Any) -> Reader[Any]:
    return Reader(kind, SettledUnreadable, _CANNOT, max_bytes=MAX_SETTLED_BYTES)


_read: Final[Reader[_Record]] = _reader(_Record)
_read_query: Final[Reader[_Query]] = _reader(_Query)
_read_position: Final[Reader[_OrderPosition]] = _reader(_OrderPosition)


def order_position_of(value: bytes) -> tuple[int, str, str] | None:
    """Position of a settled query in the merged order; None for a watermark record.

    Much faster than `decode_settled`. Raises SettledUnreadable.
    """
    position = _read_position(value)
    if position.settled_time_ms is None:
        return None
    return position.settled_time_ms, position.trace_id, position.node_id


def decode_settled(
    value: bytes, measures: MeasureSet, *, task: int | None = None, offset: int = -1
) -> SettledQuery | tuple[int, WatermarkRecord]:
    """A settled query, or a watermark record with its task.

    Invalid training data alone are left out, so a query counts alike with and without learning.
    Raises SettledUnreadable, also if it is not of *task*.
    """
    record = _decoded(value)
    _require_usable(record, task)
    canonical = measures.canonical
    names = {name: canonical[column] for name, column in measures.columns.items()}
    units = {
        ranker: {
            names[name]: round(number * UNITS_PER_ONE)
            for name, number in values.items()
            if name in names
        }
        for ranker, values in record.values.items()
    }
    query = _query(record, units, len(value), offset)
    if not isinstance(query, SettledQuery):
        return query
    if isinstance(record, _Record):
        with suppress(SettledUnreadable), refused_as(SettledUnreadable, _CANNOT):
            return _with_training_data(query, record)
    return query._replace(invalid_training_data=True)


def _decoded(value: bytes) -> _Query:
    """The record; without its training data if these are invalid. Raises SettledUnreadable."""
    try:
        return _read(value)
    except SettledUnreadable:
        return _read_query(value)


Watched = WatchedQueries | tuple[int, WatermarkRecord]
"""Queries, or a watermark record and its offset."""
Refused = tuple[int, SettledUnreadable]
"""The offset of a record that cannot be read, and the reason."""


class WatchedReader:
    """Reads settled queries to columns, with the values that alarms need alone.

    Args:
        watched: canonical names of the measures, by spelling.
        columns: rankers and canonical measures of the values.
    """

    def __init__(self, watched: Mapping[str, str], columns: Sequence[tuple[str, str]]) -> None:
        rankers = {ranker: f"r{n}" for n, ranker in enumerate(dict(columns))}
        fields = list[Any]()
        for ranker, name in rankers.items():
            members: list[Any] = [
                (f"v{n}", _Value, msgspec.field(name=spelling, default=nan))
                for n, (spelling, of) in enumerate(watched.items())
                if (ranker, of) in columns
            ]
            of_ranker: Any = msgspec.defstruct("_Values", members)
            fields.append((name, of_ranker, msgspec.field(name=ranker, default_factory=of_ranker)))
        values: Any = msgspec.defstruct("_Rankers", fields)
        member: Any = ("values", values, msgspec.field(default_factory=values))
        kind: Any = msgspec.defstruct("_Watched", [member], bases=(_Query,))
        self._read = _reader(kind)
        spelled = [
            (ranker, [(n, name) for n, (name, of) in enumerate(watched.items()) if of == measure])
            for ranker, measure in columns
        ]
        self._n_spellings = [len(names) for _, names in spelled]
        self._values_of = [
            attrgetter(f"values.{rankers[ranker]}.v{n}")
            for ranker, names in spelled
            for n, _ in names
        ]
        self._compiled = WatchedDecoder(
            [(of, [name for _, name in names]) for of, names in spelled]
        )

    def __call__(
        self, values: ByteStrings, offsets: IntArray, task: int | None = None
    ) -> tuple[list[Watched], list[Refused]]:
        """The records of one task, and those that cannot be read or are not of *task*."""
        found, refused = self._compiled(values, offsets), list[Refused]()
        if found is None or (task is not None and (found[0].tasks != task).any()):
            found = self._by_reference(values, offsets, task, refused)
        if found is None:
            return [], refused
        (queries, watermark_rows), first, parts = found, 0, list[Watched]()
        for row, watermark_ms in [*watermark_rows, (len(queries.ns), None)]:
            if row > first:
                parts.append(queries.rows(slice(first, row)))
            if watermark_ms is not None:
                record = WatermarkRecord(watermark_ms, int(queries.ns[row]))
                parts.append((int(queries.offsets[row]), record))
            first = row + 1
        return parts, refused

    def _by_reference(
        self, values: ByteStrings, offsets: IntArray, task: int | None, refused: list[Refused]
    ) -> tuple[WatchedQueries, WatermarkRows] | None:
        """The same as the compiled part; None without records. Adds to *refused*."""
        records, kept = list[Any](), list[int]()
        for value, offset in zip(values, offsets.tolist(), strict=True):
            try:
                record = self._read(value or b"")
                _require_usable(record, task)
                records.append(record)
                kept.append(offset)
            except SettledUnreadable as error:
                refused.append((offset, error))
        if not records:
            return None
        given = np.array([list(map(of, records)) for of in self._values_of])
        shape = len(self._values_of), len(records)
        columns = merged(given.reshape(shape).T, self._n_spellings)
        watermark_rows = [
            (row, of.watermark_ms) for row, of in enumerate(records) if of.watermark_ms is not None
        ]
        return WatchedQueries.of(records, np.array(kept), *columns), watermark_rows


def watched_of(
    records: Sequence[SettledQuery | tuple[int, WatermarkRecord]],
    offsets: Sequence[int],
    columns: Sequence[tuple[str, str]],
) -> list[Watched]:
    """The same of records that `decode_settled` has read."""
    found = list[Watched]()
    for is_query, rows in groupby(
        zip(records, offsets, strict=True), lambda row: isinstance(row[0], SettledQuery)
    ):
        if is_query:
            queries: Any = [query for query, _ in rows]
            found.append(WatchedQueries.of_settled(queries, columns))
        else:
            watermarks: Any = rows
            found += [(offset, watermark) for (_, watermark), offset in watermarks]
    return found


def _require_usable(record: _Query, task: int | None) -> None:
    """Raises SettledUnreadable for a record without its time, or of another task than *task*."""
    if record.settled_time_ms < 0 and record.watermark_ms is None:
        raise SettledUnreadable("a record of settled has neither settled_time_ms nor watermark_ms")
    if task is not None and record.task != task:
        raise SettledUnreadable(f"a record of task {record.task} in partition {task}")


def _query(
    record: _Query, units: Mapping[str, Mapping[str, int]], n_bytes: int, offset: int
) -> SettledQuery | tuple[int, WatermarkRecord]:
    if record.watermark_ms is not None:
        return record.task, WatermarkRecord(record.watermark_ms, record.n)
    return SettledQuery(  # each name of an argument takes time
        record.task,
        record.n,
        record.settled_time_ms,
        record.event_time_ms,
        record.trace_id,
        record.node_id,
        record.model,
        record.grades,
        units,
        n_bytes=n_bytes,
        offset=offset,
        variant=record.variant,
        segments=record.segments,
        silent=record.silent,
    )


def _with_training_data(query: SettledQuery, record: _Record) -> SettledQuery:
    names = record.feature_names
    propensities, n_candidates = record.propensities, len(record.candidate_ids)
    if n_candidates and propensities is not None and len(propensities) != n_candidates:
        raise SettledUnreadable(
            f"{record.trace_id}, {record.node_id} has {len(propensities)} propensities of "
            f"{n_candidates} candidates"
        )
    return query._replace(
        sources=record.sources or {},
        candidate_ids=record.candidate_ids,
        feature_names=names,
        features=NO_FEATURES if names is None else _features(record, len(names)),
        propensities=record.propensities,
        described=None if names is not None else _described(record),
        logged=_logged(record),
    )


def _logged(record: _Record) -> LoggedQuery | None:
    exposed = None if record.exposed is None else int(record.exposed, 16)
    if exposed is None and not record.logged:
        return None
    return LoggedQuery(exposed, record.logged)


def _features(record: _Record, n_names: int) -> FloatArray:
    shape = len(record.candidate_ids), n_names
    if len(record.features) != shape[0] or any(len(row) != n_names for row in record.features):
        raise SettledUnreadable(
            f"the features of {record.trace_id}, {record.node_id} are not {shape[0]} rows of "
            f"{shape[1]} numbers"
        )
    return np.array(record.features, np.float64).reshape(shape)


def _described(record: _Record) -> Described | None:
    if record.candidate_kind is None:
        return None
    return Described(
        kind=record.candidate_kind,
        query=record.query,
        candidate_ids=tuple(record.candidate_ids),
        descriptions=tuple(record.descriptions),
        graphs=tuple(Graph(g.type, g.text, g.n_nodes, g.n_edges) for g in record.graphs),
    )

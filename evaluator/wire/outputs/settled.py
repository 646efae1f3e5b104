"""Decoding of records of `settled`: settled queries and watermark records."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from evaluator.core.measures import UNITS_PER_ONE, MeasureSet
from evaluator.core.online.ordered_merge import NO_FEATURES, SettledQuery
from evaluator.core.types.candidates import CandidateKind, Described, Graph
from evaluator.core.types.records import FloatArray, LoggedQuery, WatermarkRecord
from evaluator.wire.messages.models import MAX_GRADE
from evaluator.wire.reading import UNREADABLE, Count, Reader, refused_as

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


class _Place(msgspec.Struct):
    """Place of a settled query in the order; a watermark record has no settled time."""

    trace_id: str = ""
    node_id: str = ""
    settled_time_ms: int | None = None


class _Query(msgspec.Struct):
    """What alarms read of a settled query, or of a watermark record, in the order of writing.

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


_read: Final[Reader[_Record]] = Reader(
    _Record, SettledUnreadable, _CANNOT, max_bytes=MAX_SETTLED_BYTES
)
_read_query: Final[Reader[_Query]] = Reader(
    _Query, SettledUnreadable, _CANNOT, max_bytes=MAX_SETTLED_BYTES
)
_read_place: Final[Reader[_Place]] = Reader(
    _Place, SettledUnreadable, _CANNOT, max_bytes=MAX_SETTLED_BYTES
)


def place_of(value: bytes) -> tuple[int, str, str] | None:
    """Place of a settled query in the merged order; None for a watermark record.

    Much faster than `decode_settled`. Raises SettledUnreadable.
    """
    place = _read_place(value)
    if place.settled_time_ms is None:
        return None
    return place.settled_time_ms, place.trace_id, place.node_id


def decode_settled(
    value: bytes, measures: MeasureSet, *, offset: int = -1
) -> SettledQuery | tuple[int, WatermarkRecord]:
    """A settled query, or a watermark record with its task. Raises SettledUnreadable.

    Invalid training data alone are left out, so a query counts alike with and without learning.
    """
    record = _decoded(value)
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


class WatchedReader:
    """Reads settled queries with the values of some measures, and without training data.

    It takes a quarter of the time of `decode_settled` for records that are read together.

    Args:
        watched: canonical names of the measures, by spelling.
    """

    def __init__(self, watched: Mapping[str, str]) -> None:
        kinds = [
            (f"v{n}", _Value | msgspec.UnsetType, msgspec.field(name=name, default=msgspec.UNSET))
            for n, name in enumerate(watched)
        ]
        of_ranker: Any = msgspec.defstruct("_Values", kinds)
        values: Any = ("values", dict[str, of_ranker], msgspec.field(default_factory=dict))
        kind: Any = msgspec.defstruct("_Watched", [values], bases=(_Query,))
        self._read = Reader[Any](kind, SettledUnreadable, _CANNOT, max_bytes=MAX_SETTLED_BYTES)
        self._members = [(f"v{n}", canonical) for n, canonical in enumerate(watched.values())]

    def __call__(
        self, value: bytes, offset: int = -1
    ) -> SettledQuery | tuple[int, WatermarkRecord]:
        """The query, or a watermark record with its task. Raises SettledUnreadable."""
        return self._query(self._read(value), len(value), offset)

    def many(
        self, values: Sequence[bytes], offsets: Sequence[int]
    ) -> list[SettledQuery | tuple[int, WatermarkRecord]] | None:
        """The same for records of one task; None if they have to be read one by one."""
        records = self._read.together(values)
        if records is None or len({record.task for record in records}) != 1:
            return None
        try:
            return list(map(self._query, records, map(len, values), offsets))
        except (*UNREADABLE, SettledUnreadable):
            return None

    def _query(
        self, record: Any, n_bytes: int, offset: int
    ) -> SettledQuery | tuple[int, WatermarkRecord]:
        units = {
            ranker: {
                canonical: round(number * UNITS_PER_ONE)
                for member, canonical in self._members
                if (number := getattr(values, member)) is not msgspec.UNSET
            }
            for ranker, values in record.values.items()
        }
        return _query(record, units, n_bytes, offset)


def _query(
    record: _Query, units: Mapping[str, Mapping[str, int]], n_bytes: int, offset: int
) -> SettledQuery | tuple[int, WatermarkRecord]:
    if record.watermark_ms is not None:
        return record.task, WatermarkRecord(record.watermark_ms, record.n)
    if record.settled_time_ms < 0:
        raise SettledUnreadable("a record of settled has neither settled_time_ms nor watermark_ms")
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

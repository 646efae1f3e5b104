"""Records of `settled` as they are read again."""

from typing import Final

import msgspec
import numpy as np

from evaluator.core.described import CandidateKind, Described, Graph
from evaluator.core.measures import UNITS_PER_ONE, MeasureSet
from evaluator.core.merge import SettledQuery
from evaluator.core.types import Mark

_NO_FEATURES: Final = np.zeros((0, 0))


class SettledUnreadable(ValueError):
    """A record of `settled` is not what a worker writes; the message says why."""


class _Graph(msgspec.Struct):
    type: str
    text: str
    n_nodes: int
    n_edges: int


class _Values(msgspec.Struct, frozen=True):
    served: dict[str, float] = {}


class _Place(msgspec.Struct):
    """Where a settled query stands; a mark has no settled time."""

    trace_id: str = ""
    node_id: str = ""
    settled_time_ms: int | None = None


class _Record(msgspec.Struct):
    """A settled query or a mark; members that are not here do not matter."""

    task: int
    n: int
    watermark_ms: int | None = None
    trace_id: str = ""
    node_id: str = ""
    event_time_ms: int = 0
    settled_time_ms: int = -1
    model: str = ""
    grades: dict[str, float] = {}
    values: _Values = _Values()
    sources: dict[str, int] | None = None
    candidate_ids: list[str] = []
    feature_names: tuple[str, ...] | None = None
    features: list[list[float]] = []
    propensities: list[float] | None = None
    candidate_kind: CandidateKind | None = None
    query: str = ""
    descriptions: list[str] = []
    graphs: list[_Graph] = []


_decode: Final = msgspec.json.Decoder(_Record).decode
_decode_place: Final = msgspec.json.Decoder(_Place).decode


def place_of(value: bytes) -> tuple[int, str, str] | None:
    """Where a settled query stands in the merged order, as a worker has written it; None: a mark.

    Much quicker than to read all of it.
    """
    place = _decode_place(value)
    if place.settled_time_ms is None:
        return None
    return place.settled_time_ms, place.trace_id, place.node_id


def decode_settled(value: bytes, measures: MeasureSet) -> SettledQuery | tuple[int, Mark]:
    """A settled query, or a mark with its task.

    Raises:
        SettledUnreadable: if it is neither.
    """
    try:
        record = _decode(value)
        if record.watermark_ms is not None:
            return record.task, Mark(record.watermark_ms, record.n)
        if record.settled_time_ms < 0:
            raise SettledUnreadable("a record of settled has neither settled_time_ms nor a mark")
        return _query(record, measures, len(value))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettledUnreadable(f"a record of settled cannot be read: {error}") from None


def _query(record: _Record, measures: MeasureSet, n_bytes: int) -> SettledQuery:
    if record.sources is None:
        raise SettledUnreadable(
            "records of settled do not say what can be learned from: set learning to propose or "
            "auto for the workers too"
        )
    names = record.feature_names
    features = _NO_FEATURES
    if names is not None:
        shape = len(record.candidate_ids), len(names)
        try:
            features = np.array(record.features, np.float64).reshape(shape)
        except ValueError:
            raise SettledUnreadable(
                f"the features of {record.trace_id}, {record.node_id} are not {shape[0]} rows of "
                f"{shape[1]} numbers"
            ) from None
    canonical, columns = measures.canonical, measures.columns
    return SettledQuery(
        task=record.task,
        n=record.n,
        settled_time_ms=record.settled_time_ms,
        event_time_ms=record.event_time_ms,
        trace_id=record.trace_id,
        node_id=record.node_id,
        model=record.model,
        grades=record.grades,
        served_units={
            canonical[columns[name]]: round(number * UNITS_PER_ONE)
            for name, number in record.values.served.items()
            if name in columns
        },
        sources=record.sources,
        candidate_ids=record.candidate_ids,
        feature_names=names,
        features=features,
        propensities=record.propensities,
        described=None if names is not None else _described(record),
        n_bytes=n_bytes,
    )


def _described(record: _Record) -> Described | None:
    if record.candidate_kind is None:
        return None
    try:
        return Described(
            kind=record.candidate_kind,
            query=record.query,
            candidate_ids=tuple(record.candidate_ids),
            descriptions=tuple(record.descriptions),
            graphs=tuple(Graph(g.type, g.text, g.n_nodes, g.n_edges) for g in record.graphs),
        )
    except ValueError as error:
        raise SettledUnreadable(f"{record.trace_id}, {record.node_id}: {error}") from None

"""Offline samples, one row per candidate, to messages: a ranking and a judgment per group.

The n-th group has the timestamp n. Rows without scores are in served order.
"""

from array import array
from collections.abc import Sequence
from math import nan
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct, field

from evaluator.core.features import filled
from evaluator.core.types.candidates import CandidateKind, Described, Graph
from evaluator.core.types.records import FeatureColumns, plain_feature_names
from evaluator.wire.messages.limits import (
    MAX_DESCRIPTION_BYTES,
    MAX_EDGES,
    MAX_FEATURES,
    MAX_ID_BYTES,
    MAX_NODES,
    SCHEMA_VERSION,
)
from evaluator.wire.reading import Reader


class SampleRefused(ValueError):
    """A row cannot be used; the message has the reason."""


class SampleGraph(Struct, frozen=True):
    """A candidate that is a graph."""

    type: str | None = None
    text: str | None = None
    nodes: list[Any] | None = None
    edges: list[Any] | None = None


class SampleRow(Struct, frozen=True):
    """One candidate of one query."""

    trace_id: str
    node_id: str
    candidate_id: str | None = None
    tool: str | None = None
    query: str | None = None
    features: list[float | None] | None = None
    feature_names: list[str] | None = None
    label: float | None = None
    propensity: float | None = None
    score: float | None = None
    candidate_kind: CandidateKind | None = None
    description: str | None = None
    graph: SampleGraph | None = None


class SampleFeatures(NamedTuple):
    """Features of one group, candidate by candidate; none if names are empty."""

    names: tuple[str, ...]
    values: "array[float]"
    propensities: list[float] | None
    described: Described | None = None


_read_row: Final[Reader[SampleRow]] = Reader(SampleRow, SampleRefused, "not a sample")


class _Group(Struct):
    query: str | None
    feature_names: tuple[str, ...]
    kind: CandidateKind | None
    features: "array[float]" = field(default_factory=lambda: array("d"))
    propensities: list[float | None] = field(default_factory=list)
    candidate_ids: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    labels: dict[str, float] = field(default_factory=dict)
    descriptions: list[str] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)


class Samples:
    """Rows gathered by (trace_id, node_id), groups in the order of their first row.

    Features and propensities are kept only with *features*. They are not in the messages, whose
    size is limited; the offset of its ranking identifies a group.
    """

    def __init__(self, *, features: bool = False) -> None:
        self._features = features
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, line: bytes) -> None:
        """Adds a row; empty lines are ignored.

        Raises:
            SampleRefused: if it is not a row, or differs from the rows of its group.
        """
        if not line.strip():
            return
        row = _read(line)
        names = _feature_names(row) if self._features else ()
        kind = _kind(row) if self._features and row.features is None else None
        new = _Group(row.query, names, kind)
        group = self._groups.setdefault((row.trace_id, row.node_id), new)
        if group.candidate_ids:
            _check_group(group, row, names, kind)
        candidate_id = row.tool if row.candidate_id is None else row.candidate_id
        assert candidate_id is not None  # noqa: S101  # checked by _read
        group.candidate_ids.append(candidate_id)
        if self._features:
            group.propensities.append(row.propensity)
            group.features.extend(nan if each is None else each for each in row.features or ())
        if kind == "graph":
            group.graphs.append(_graph(row.graph or SampleGraph()))
        elif kind == "tool":
            group.descriptions.append(row.description or "")
        if row.score is not None:
            group.scores.append(row.score)
        if row.label is not None:
            group.labels[candidate_id] = row.label

    @property
    def has_scores(self) -> bool:
        """Whether a group has scores; the others are in the order of their rows."""
        return any(group.scores for group in self._groups.values())

    def rankings(self) -> list[bytes]:
        """A message for each group."""
        return [
            _message(
                key, number, query=group.query, candidate_ids=group.candidate_ids, **_order(group)
            )
            for number, (key, group) in enumerate(self._groups.items())
        ]

    def features(self) -> list[SampleFeatures]:
        """The features of each group, in the order of the rankings."""
        return [
            SampleFeatures(
                group.feature_names,
                _filled(group.features, len(group.feature_names)),
                _seen(group.propensities),
                _described(group),
            )
            for group in self._groups.values()
        ]

    def judgments(self) -> list[bytes]:
        """A message for each group with a label."""
        return [
            _message(key, number, grades=group.labels)
            for number, (key, group) in enumerate(self._groups.items())
            if group.labels
        ]


def _check_group(
    group: _Group, row: SampleRow, names: tuple[str, ...], kind: CandidateKind | None
) -> None:
    """Raises SampleRefused if a row differs from the first one of its group."""
    key = f"{row.trace_id}, {row.node_id}"
    if bool(group.scores) != (row.score is not None):
        raise SampleRefused(
            f"some rows of {key} have a score and some have none. Give all of them one, or none: "
            "then they are in the order in which they were served."
        )
    if names != group.feature_names:
        raise SampleRefused(
            f"features {', '.join(names) or 'none'} for a candidate of {key} whose first row has "
            f"{', '.join(group.feature_names) or 'none'}. Give all rows of a group the same "
            "features."
        )
    if kind != group.kind:
        found, first = (
            "not described" if one is None else f"a {one}" for one in (kind, group.kind)
        )
        raise SampleRefused(
            f"{key} has a candidate that is {found}, and its first row is {first}. Give all rows "
            "of a group a graph, or all candidate_kind tool, or neither."
        )


def _feature_names(row: SampleRow) -> tuple[str, ...]:
    """Names of the features of a row; empty without features. Raises SampleRefused."""
    n = len(row.features or ())
    if n > MAX_FEATURES:
        raise SampleRefused(f"{n} features; a candidate has at most {MAX_FEATURES}.")
    if row.features is None or row.feature_names is None:
        return plain_feature_names(n)
    if len(row.feature_names) != n:
        raise SampleRefused(f"{n} features and {len(row.feature_names)} feature_names.")
    return tuple(row.feature_names)


def _kind(row: SampleRow) -> CandidateKind | None:
    """The kind of a described candidate, as in a ranking. Raises SampleRefused."""
    if row.description is not None and row.graph is not None:
        raise SampleRefused("a candidate has a description (of a tool) or a graph, not both.")
    for member, kind in ((row.description, "tool"), (row.graph, "graph")):
        if member is not None and row.candidate_kind not in (None, kind):
            raise SampleRefused(f"candidate_kind is {row.candidate_kind}, and it is a {kind}.")
    if row.graph is not None:
        return "graph"
    _require_short("description", row.description, MAX_DESCRIPTION_BYTES)
    return "tool" if row.description is not None or row.candidate_kind == "tool" else None


def _graph(graph: SampleGraph) -> Graph:
    """The graph. Raises SampleRefused beyond the limits of a ranking."""
    nodes, edges = len(graph.nodes or ()), len(graph.edges or ())
    if nodes > MAX_NODES or edges > MAX_EDGES:
        raise SampleRefused(
            f"{nodes} nodes and {edges} edges; a graph has at most {MAX_NODES} and {MAX_EDGES}."
        )
    _require_short("text", graph.text, MAX_DESCRIPTION_BYTES)
    _require_short("type", graph.type, MAX_ID_BYTES)
    return Graph(graph.type or "", graph.text or "", nodes, edges)


def _require_short(member: str, text: str | None, most: int) -> None:
    n_bytes = len((text or "").encode("utf-8", "surrogatepass"))
    if n_bytes > most:
        raise SampleRefused(f"{member} has {n_bytes} bytes; it has at most {most}.")


def _filled(features: "array[float]", n_features: int) -> "array[float]":
    matrix = np.frombuffer(features)
    if not np.isnan(matrix).any():
        return features
    return array("d", filled(matrix.reshape(-1, n_features)).tobytes())


def _described(group: _Group) -> Described | None:
    if group.kind is None:
        return None
    descriptions = tuple(group.descriptions) if any(group.descriptions) else ()
    ids, graphs = tuple(group.candidate_ids), tuple(group.graphs)
    return Described(group.kind, group.query or "", ids, descriptions, graphs)


def _read(line: bytes) -> SampleRow:
    row = _read_row(line)
    if row.candidate_id is None and row.tool is None:
        raise SampleRefused("not a sample: it has neither candidate_id nor tool.")
    if row.propensity is not None and not 0 < row.propensity <= 1:
        raise SampleRefused("not a sample: propensity must be above 0 and at most 1.")
    return row


def _message(key: tuple[str, str], number: int, **members: object) -> bytes:
    about = {"trace_id": key[0], "node_id": key[1], "timestamp_ms": number}
    return msgspec.json.encode({"schema_version": SCHEMA_VERSION, **about, **members})


def _seen(propensities: Sequence[float | None]) -> list[float] | None:
    """Propensities, with 1 for candidates without one; None if none has one."""
    return [each or 1.0 for each in propensities] if any(propensities) else None  # none is 0


def _order(group: _Group) -> dict[str, object]:
    ranks = list(range(1, len(group.candidate_ids) + 1))
    return {"scores": group.scores} if group.scores else {"ranks": ranks}


def feature_columns(groups: Sequence[SampleFeatures]) -> FeatureColumns:
    """The features of *groups* as the features of a batch of rankings."""
    return FeatureColumns(
        [group.names or None for group in groups],
        np.concatenate([np.zeros(0), *(np.frombuffer(group.values) for group in groups)]) + 0.0,
        {
            row: group.propensities
            for row, group in enumerate(groups)
            if (group.names or group.described) and group.propensities is not None
        },
        {row: group.described for row, group in enumerate(groups) if group.described is not None},
    )

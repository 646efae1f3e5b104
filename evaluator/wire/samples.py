"""Offline samples, one row per candidate -> messages: a ranking and a judgment per group.

Samples know no time and may know no scores. The n-th group has the timestamp n, and rows without
scores stand in the order in which they were served.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from evaluator.wire.models import SCHEMA_VERSION


class SampleRefused(ValueError):
    """A row cannot be understood; the message says why."""


class SampleRow(msgspec.Struct, frozen=True):
    """One candidate of one query."""

    trace_id: str
    node_id: str
    candidate_id: str | None = None
    tool: str | None = None
    query: str | None = None
    features: list[float] | None = None
    feature_names: list[str] | None = None
    label: float | None = None
    propensity: float | None = None
    score: float | None = None


_ROW: Final = msgspec.json.Decoder(SampleRow)


@dataclass(slots=True)
class _Group:
    query: str | None
    feature_names: list[str] | None
    features: list[list[float]] = field(default_factory=list)
    propensities: list[float | None] = field(default_factory=list)
    candidate_ids: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    labels: dict[str, float] = field(default_factory=dict)


class Samples:
    """Rows gathered by (trace_id, node_id), groups in the order of their first row.

    Features and propensities are kept, and part of the rankings, only if *features* are asked for.
    """

    def __init__(self, *, features: bool = False) -> None:
        self._features = features
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, line: bytes) -> None:
        """Takes a row; an empty line is none.

        Raises:
            SampleRefused: if it is no row, or does not fit to its group.
        """
        if not line.strip():
            return
        row = _read(line)
        group = self._groups.setdefault(
            (row.trace_id, row.node_id), _Group(row.query, row.feature_names)
        )
        if group.candidate_ids:
            _require_score_as_before(group, row)
            if self._features:
                _require_features_as_before(group, row)
        candidate_id = row.tool if row.candidate_id is None else row.candidate_id
        assert candidate_id is not None  # noqa: S101  # _read has seen to it
        group.candidate_ids.append(candidate_id)
        if self._features:
            group.propensities.append(row.propensity)
            group.features += [] if row.features is None else [row.features]
        if row.score is not None:
            group.scores.append(row.score)
        if row.label is not None:
            group.labels[candidate_id] = row.label

    def rankings(self) -> list[bytes]:
        """A message for each group."""
        return [
            msgspec.json.encode(
                {
                    **_about(key, number),
                    "query": group.query,
                    "candidate_ids": group.candidate_ids,
                    **_order(group),
                    **_to_learn_from(group),
                }
            )
            for number, (key, group) in enumerate(self._groups.items())
        ]

    def judgments(self) -> list[bytes]:
        """A message for each group with a label."""
        return [
            msgspec.json.encode({**_about(key, number), "grades": group.labels})
            for number, (key, group) in enumerate(self._groups.items())
            if group.labels
        ]


def _require_score_as_before(group: _Group, row: SampleRow) -> None:
    if bool(group.scores) != (row.score is not None):
        raise SampleRefused(
            f"some rows of {row.trace_id}, {row.node_id} have a score and some have none. "
            "Give all of them one, or none: then they stand as they were served."
        )


def _require_features_as_before(group: _Group, row: SampleRow) -> None:
    n_before = len(group.features[0]) if group.features else 0
    n = 0 if row.features is None else len(row.features)
    if n != n_before or row.feature_names != group.feature_names:
        raise SampleRefused(
            f"{n} features for a candidate of {row.trace_id}, {row.node_id} whose first row has "
            f"{n_before}, or other feature_names. Give all rows of a group the same features."
        )


def _read(line: bytes) -> SampleRow:
    try:
        row = _ROW.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SampleRefused(f"no sample: {error}") from None
    if row.candidate_id is None and row.tool is None:
        raise SampleRefused("no sample: it has neither candidate_id nor tool.")
    if row.propensity is not None and not 0 < row.propensity <= 1:
        raise SampleRefused("no sample: propensity must be above 0 and at most 1.")
    return row


def _about(key: tuple[str, str], number: int) -> dict[str, object]:
    trace_id, node_id = key
    return {
        "schema_version": SCHEMA_VERSION,
        "trace_id": trace_id,
        "node_id": node_id,
        "timestamp_ms": number,
    }


def _to_learn_from(group: _Group) -> dict[str, object]:
    """Features and propensities; a candidate without a propensity was seen for certain."""
    members: dict[str, object] = {}
    if group.features:
        members["features"] = group.features
        members["feature_names"] = group.feature_names
    if any(propensity is not None for propensity in group.propensities):
        members["propensities"] = [1.0 if p is None else p for p in group.propensities]
    return members


def _order(group: _Group) -> dict[str, object]:
    if group.scores:
        return {"scores": group.scores}
    return {"ranks": list(range(1, len(group.candidate_ids) + 1))}

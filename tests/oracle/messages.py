"""Records of one log as plain values, and the reading of well-formed JSON into them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

Log = Literal["rankings", "judgments"]


class ReadError(ValueError):
    """The oracle cannot read these bytes as a message of the log."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as stored in a log; a value of None is a heartbeat.

    `timestamp_ms` is the record's own; None or -1 where the medium has none (files).
    """

    offset: int
    timestamp_ms: int | None
    value: bytes | None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A record without a value: it only advances the clock of its log."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that is not a message; it does not advance the clock."""

    offset: int
    reason: str
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class Ranking:
    """A ranking. `scores` has None where the message gives no score."""

    offset: int
    timestamp_ms: int
    value: bytes
    trace_id: str
    node_id: str
    model: str
    variant: str
    query: str
    candidate_ids: tuple[str, ...]
    scores: tuple[float | None, ...]
    ranks: tuple[int, ...] | None
    scorers: tuple[tuple[str, tuple[float, ...]], ...]
    subtopics: "Subtopics" = ()
    published_ms: tuple[int | None, ...] | None = None
    segments: tuple[tuple[str, str], ...] = ()

    def __hash__(self) -> int:
        """The hash of the bytes, which bytes objects cache; equal rankings have equal bytes."""
        return hash((self.offset, self.value))

    @property
    def key(self) -> tuple[str, str]:
        return self.trace_id, self.node_id

    @property
    def rankers(self) -> tuple[str, ...]:
        """`served` first, then the named scorers, sorted by name."""
        return ("served", *sorted(name for name, _ in self.scorers))


@dataclass(frozen=True, slots=True)
class Judgment:
    """Grades of candidates; a grade of None withdraws."""

    offset: int
    timestamp_ms: int
    value: bytes
    trace_id: str
    node_id: str
    source: str
    judgment_id: str | None
    grades: tuple[tuple[str, float | None], ...]
    subtopics: "Subtopics" = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.trace_id, self.node_id


Subtopics = tuple[tuple[str, tuple[str, ...] | None], ...]
"""Subtopics by candidate id as in the message; None withdraws."""

RankingsRecord = Heartbeat | Malformed | Ranking
JudgmentsRecord = Heartbeat | Malformed | Judgment
Refusal = Callable[[Raw], str | None]
"""Returns why a record with a value is malformed, or None if it is well-formed."""


def number(value: float) -> float:
    """A JSON number as float64; minus zero is zero."""
    return float(value) + 0.0


def has_timestamp(raw: Raw) -> bool:
    """Whether the record has a timestamp of its own."""
    return raw.timestamp_ms is not None and raw.timestamp_ms >= 0


def timestamp(message: dict[str, Any], raw: Raw) -> int:
    """`timestamp_ms` of the message, or else of the record."""
    stated = message.get("timestamp_ms")
    if stated is not None:
        return int(stated)
    if raw.timestamp_ms is None or raw.timestamp_ms < 0:
        raise ReadError(f"offset {raw.offset}: neither timestamp_ms nor a record timestamp")
    return raw.timestamp_ms


def candidates(message: dict[str, Any]) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    """Ids and served scores, from the columnar or from the row form."""
    ids = message.get("candidate_ids")
    scores: Any = message.get("scores")
    if ids is None:
        rows = message["candidates"]
        ids = [row["id"] for row in rows]
        if scores is None:
            scores = [row.get("score") for row in rows]
    if scores is None:
        scores = [None] * len(ids)
    return tuple(ids), tuple(None if score is None else number(score) for score in scores)


def read_ranking(raw: Raw) -> Ranking:
    """A well-formed ranking."""
    message = json.loads(raw.value or b"")
    ids, scores = candidates(message)
    ranks = message.get("ranks")
    scorers = message.get("scorers") or {}
    return Ranking(
        offset=raw.offset,
        timestamp_ms=timestamp(message, raw),
        value=raw.value or b"",
        trace_id=message["trace_id"],
        node_id=message["node_id"],
        model=message.get("model") or "",
        variant=message.get("variant") or "",
        query=message.get("query") or "",
        candidate_ids=ids,
        scores=scores,
        ranks=None if ranks is None else tuple(ranks),
        scorers=tuple((name, tuple(map(number, scorers[name]))) for name in sorted(scorers)),
        subtopics=subtopics(message),
        published_ms=published(message),
        segments=segments(message),
    )


def segments(message: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Level by segment, without missing and empty levels."""
    return tuple((name, level) for name, level in (message.get("segments") or {}).items() if level)


def subtopics(message: dict[str, Any]) -> Subtopics:
    """In the order of the message."""
    given = message.get("subtopics") or {}
    return tuple((name, None if ts is None else tuple(ts)) for name, ts in given.items())


def published(message: dict[str, Any]) -> tuple[int | None, ...] | None:
    """From the columnar or from the row form."""
    times = message.get("published_ms")
    if times is None and message.get("candidate_ids") is None:
        times = [row.get("published_ms") for row in message["candidates"]]
    return None if times is None else tuple(times)


def read_judgment(raw: Raw) -> Judgment:
    """A well-formed judgment."""
    message = json.loads(raw.value or b"")
    grades = message["grades"].items()
    return Judgment(
        offset=raw.offset,
        timestamp_ms=timestamp(message, raw),
        value=raw.value or b"",
        trace_id=message["trace_id"],
        node_id=message["node_id"],
        source=message.get("source") or "",
        judgment_id=message.get("judgment_id"),
        grades=tuple((name, None if g is None or g < 0 else number(g)) for name, g in grades),
        subtopics=subtopics(message),
    )


def nothing_refused(raw: Raw) -> str | None:
    """Refuses nothing, for logs with only well-formed records."""
    return None


def read_rankings(raws: Iterable[Raw], refuses: Refusal = nothing_refused) -> list[RankingsRecord]:
    """A prefix of `rankings`; *refuses* decides which records are malformed."""
    return [not_a_message(raw, refuses) or read_ranking(raw) for raw in raws]


def read_judgments(
    raws: Iterable[Raw], refuses: Refusal = nothing_refused
) -> list[JudgmentsRecord]:
    """A prefix of `judgments`; *refuses* decides which records are malformed."""
    return [not_a_message(raw, refuses) or read_judgment(raw) for raw in raws]


def not_a_message(raw: Raw, refuses: Refusal) -> Heartbeat | Malformed | None:
    """The heartbeat or the malformed record that *raw* is, or None for a message."""
    if raw.value is None:
        if raw.timestamp_ms is None or raw.timestamp_ms < 0:
            return Malformed(raw.offset, "schema")  # a heartbeat needs a timestamp
        return Heartbeat(raw.offset, raw.timestamp_ms)
    reason = refuses(raw)
    return None if reason is None else Malformed(raw.offset, reason, raw.value)

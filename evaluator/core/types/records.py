"""The words of the domain, as types. No behaviour beyond what a value can say of itself.

A poll batch is handled in columns: one entry per well-formed record, in offset order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns import table
from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.types.candidates import Described

Log = Literal["rankings", "judgments"]
LOGS: tuple[Log, Log] = ("rankings", "judgments")

IntArray = table.IntArray
FloatArray = NDArray[np.float64]

Key = tuple[str, str]
"""(trace_id, node_id)"""

SERVED = "served"
"""The ranker whose order the user saw; the first ranker of every ranking."""

WEIGHTS = "weights"
"""The ranker whose scores are linear in the features; where it is there, it is the last one."""

SubtopicsById = Mapping[str, Sequence[str] | None]
"""Subtopics by candidate id, as a message gives them."""

Tally = dict[tuple[str, ...], int]
"""Exact counts and sums by path, e.g. ("rankings", "read"). Tallies add and subtract key by key."""


class DeadLetter(NamedTuple):
    """An input record that counts for nothing, with the reason and its original bytes.

    `cut_from` is how many bytes the value had, if only its beginning is here.
    """

    log: Log
    offset: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes
    cut_from: int | None = None


@dataclass(slots=True)
class Columns:
    """What both kinds of decoded batch have: order, time, identity, and what was not a message.

    `offsets` and `timestamps_ms` are `[n_rows]`, int64, in offset order. The two heartbeat
    arrays are `[n_heartbeats]`, int64. `next_offset` is the offset to read after this batch.
    """

    offsets: IntArray
    timestamps_ms: IntArray
    trace_ids: list[str]
    node_ids: list[str]
    hashes: list[bytes]  # 16 bytes of each value: equal values, equal hashes
    keys: list[bytes | None]  # of the record, for dead letters
    values: list[bytes]  # of the record, for dead letters
    heartbeat_offsets: IntArray
    heartbeat_timestamps_ms: IntArray
    malformed: list[DeadLetter]
    next_offset: int

    def __len__(self) -> int:
        return len(self.trace_ids)

    @property
    def n_read(self) -> int:
        """Records read: rows, heartbeats and malformed ones together."""
        return len(self.trace_ids) + len(self.heartbeat_offsets) + len(self.malformed)


@dataclass(slots=True)
class FeatureColumns:
    """Features of the rankings of a batch, kept where somebody asks for them.

    `names[b]` are the features of row b, None for a row without any; without names of their own
    they are f0, f1, ... `values` is flat: of each row that has features, candidate after
    candidate, the numbers in the order of the names. `propensities[b]` is parallel to the
    candidates of row b, if the message has any. `described[b]` is there for a row without features
    that says what they can be made of.
    """

    names: list[tuple[str, ...] | None]
    values: FloatArray
    propensities: dict[int, Sequence[float]] = field(default_factory=dict)
    described: dict[int, Described] = field(default_factory=dict)

    def of_rows(self, candidate_counts: IntArray) -> Iterator[FloatArray | None]:
        """The features of each row, `[n_candidates, n_features]`; None for a row without any."""
        at = 0
        for names, n in zip(self.names, candidate_counts.tolist(), strict=True):
            if names is None:
                yield None
            else:
                last = at + n * len(names)
                yield self.values[at:last].reshape(n, len(names))
                at = last


@cache
def plain_feature_names(n_features: int) -> tuple[str, ...]:
    """Names of features that came without.

    >>> plain_feature_names(2)
    ('f0', 'f1')
    """
    return tuple(f"f{index}" for index in range(n_features))


@dataclass(slots=True)
class RankingColumns(Columns):
    """Rankings of one partition, decoded.

    `candidate_ids` is flat: the ids of row 0, of row 1, ... in message order, repeated ids
    included; row b has `candidate_counts[b]` of them. `scores` is flat too: for row b one run
    of `candidate_counts[b]` numbers per name in `rankers[b]`, finite, -0.0 already 0.0. NaN
    stands for a score that the message does not give (ranks without scores).
    `explicit_ranks[b]` is present for a row that brought `ranks`: the served order is then
    by rank ascending instead of by score descending. `subtopics[b]`, if the message has any,
    are lists of subtopics by candidate id; `published_ms[b]` is parallel to the candidates.
    Both are empty in ordinary traffic. `features` is None unless they were asked for.
    """

    models: list[str]
    variants: list[str]
    queries: list[str]
    rankers: list[tuple[str, ...]]  # SERVED first, then the named scorers by name, then WEIGHTS
    candidate_counts: IntArray
    candidate_ids: DictionaryColumn
    scores: FloatArray
    explicit_ranks: dict[int, list[int]]
    subtopics: dict[int, SubtopicsById] = field(default_factory=dict)
    published_ms: dict[int, Sequence[int | None]] = field(default_factory=dict)
    features: FeatureColumns | None = None


@dataclass(slots=True)
class JudgmentColumns(Columns):
    """Judgments of one partition, decoded.

    A grade is withdrawn where it is null or negative in the message. `subtopics[b]`, if the
    message has any, are lists of subtopics by candidate id, None where they are withdrawn.
    """

    sources: list[str]
    judgment_ids: list[str | None]
    grades: GradeColumns
    subtopics: dict[int, SubtopicsById] = field(default_factory=dict)


class Stratum(NamedTuple):
    """Queries that are totalled together: same model, variant and set of rankers."""

    model: str
    variant: str
    rankers: tuple[str, ...]


@dataclass(slots=True)
class EvaluationColumns:
    """Evaluated queries of one stratum; lists are `[n_queries]` unless said otherwise.

    All of them have a value, or none has: then `units` is None. The flat lists are row-major:
    `first_ranks` `[n_queries * n_rankers]` holds ranks of the first relevant candidate, 0 for
    none; `top_ids` and `top_scores` `[n_queries * n_rankers * n_top]` the first candidates of
    each ranker, a score of None where the message has none; `units` `[n_queries * n_rankers *
    n_measures]` values in units of 2^-40, MISSING (-1) for a value that the query lacks.
    """

    stratum: Stratum
    n_top: int  # how many candidates stand in each top, at most 3
    trace_ids: list[str]
    node_ids: list[str]
    event_times_ms: list[int]
    queries: list[str]
    revisions: list[int]
    grades: GradeColumns  # running, in order of application
    first_ranks: list[int]
    top_ids: list[str]
    top_scores: list[float | None]
    units: list[int] | None

    def __len__(self) -> int:
        return len(self.trace_ids)


@dataclass(slots=True)
class OfferedColumns:
    """What settled queries offer to learn from, and who judged them; lists are `[n_queries]`.

    `names` are those of the features, None for a query without any; then it has no candidates and
    no features here either. `features` are `[n_candidates, n_features]`. `described` are the
    candidates of queries without features, None where nobody says what they are. `sources` are the
    numbers of judgments that were applied in time, by source.
    """

    names: list[tuple[str, ...] | None]
    candidate_ids: list[list[str]]
    features: list[FloatArray]
    propensities: list[Sequence[float] | None]
    described: list[Described | None]
    sources: list[Mapping[str, int]]


class WatermarkRecord(NamedTuple):
    """Number *n* and all after it settle no earlier than *watermark_ms*; all before have."""

    watermark_ms: int
    n: int


@dataclass(slots=True)
class SettledColumns:
    """Settled queries of one stratum; lists are `[n_queries]` unless said otherwise.

    `ns` are their numbers in the task's order. All of them have a value, or none has: then
    `units`, flat as in `EvaluationColumns`, is None. Unjudged: empty grades.
    """

    stratum: Stratum
    ns: list[int]
    trace_ids: list[str]
    node_ids: list[str]
    event_times_ms: list[int]
    offsets: list[int]  # of the ranking in its log
    grades: GradeColumns
    units: list[int] | None
    offered: OfferedColumns | None = None  # where somebody learns

    def __len__(self) -> int:
        return len(self.ns)


class FinalWindow(NamedTuple):
    """Exact running sums of one event-time window that no correction can reach any more."""

    start_ms: int
    model: str
    variant: str
    ranker: str
    measure: str  # canonical name
    queries: int
    sum_units: int


@dataclass(slots=True)
class Outputs:
    """Everything one batch gave rise to.

    `finished` are the last revisions of the queries expired now. Numbers in `settled` go on
    without a gap from batch to batch; its parts lie between each other. `mark` comes after them.
    """

    evaluations: list[EvaluationColumns] = field(default_factory=list)
    finished: list[EvaluationColumns] = field(default_factory=list)
    settled: list[SettledColumns] = field(default_factory=list)
    watermark_record: WatermarkRecord | None = None
    windows: list[FinalWindow] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)


MAX_SKEW_MS: Final = 60_000
"""A machine whose clock is further from the broker's writes no heartbeats."""

VALUE_BOUNDS = tuple(n / 10 for n in range(11))
"""Upper bounds of the buckets that values are counted in."""

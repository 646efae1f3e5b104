"""Types of decoded records and outputs: columns with one entry per record, in offset order."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from evaluator.core.columns import table
from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn
from evaluator.core.columns.key_hashes import KeyHashes
from evaluator.core.columns.texts import TextRows
from evaluator.core.types.candidates import Described

Log = Literal["rankings", "judgments"]
LOGS: tuple[Log, Log] = ("rankings", "judgments")

IntArray = table.IntArray
FloatArray = NDArray[np.float64]

SERVED = "served"
"""The ranker of the served order: the first ranker of every ranking."""

WEIGHTS = "weights"
"""The ranker whose scores are linear in the features: the last one of a ranking that has it."""

OTHER: Final = "__other__"
"""The common label of all levels, rankers and pairs without a label of their own."""

Levels = tuple[tuple[str, str], ...]
"""Name and level of the segments of a query, in the order of the setting; none is empty."""
MAX_SEGMENTS: Final = 8
MAX_SEGMENT_BYTES: Final = 256
"""Limit of the name of a segment, as for other names in messages."""

SubtopicsById = Mapping[str, Sequence[str] | None]
"""Subtopics by candidate id, as in a message."""


class DeadLetter(NamedTuple):
    """An input record without effect, with the reason and its original bytes.

    `cut_from` is the original number of bytes of a value that was truncated, `headers` are those
    of the record.
    """

    log: Log
    offset: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes
    cut_from: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


class WithTexts:
    """The texts of queries, created on access."""

    __slots__ = ()
    texts: TextRows

    @property
    def trace_ids(self) -> list[str]:
        """`[n_rows]`."""
        return self.texts.column(0)

    @property
    def node_ids(self) -> list[str]:
        """`[n_rows]`."""
        return self.texts.column(1)

    @property
    def queries(self) -> list[str]:
        """Texts of queries: `[n_rows]`."""
        return self.texts.column(2)


class WithRankers(WithTexts):
    """Queries with the same rankers, at least one."""

    __slots__ = ()
    strata: DictionaryColumn

    @property
    def rankers(self) -> tuple[str, ...]:
        """Those of each query, in the order of the stratum."""
        (first,) = self.strata.values(0, 1)
        rankers: tuple[str, ...] = first.rankers
        return rankers


class MappedColumns(Struct, kw_only=True):
    """What a mapping adds to a decoded batch.

    It leaves out `n_left_out` records; the `n_left_out_timed` of them that move the clock are among
    the heartbeats. With `index_bits`, offsets contain the index of a message in its record, in this
    many bits; `next_offset` does not.
    """

    n_left_out: int = 0
    n_left_out_timed: int = 0
    index_bits: int = 0


class Columns(MappedColumns):
    """Members of both kinds of decoded batch.

    `offsets` and `timestamps_ms` are `[n_rows]`, in offset order; the two heartbeat arrays are
    `[n_heartbeats]`. `next_offset` is the offset to read after this batch.
    """

    offsets: IntArray
    timestamps_ms: IntArray
    key_hashes: KeyHashes
    hashes: NDArray[np.void]  # V16, of each value: equal values, equal hashes
    keys: ByteStrings  # of the record, for dead letters
    values: ByteStrings  # of the record, for dead letters
    heartbeat_offsets: IntArray
    heartbeat_timestamps_ms: IntArray
    malformed: list[DeadLetter]
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def n_read(self) -> int:
        """Number of messages, heartbeats, and records that are left out or malformed."""
        others = self.n_left_out + len(self.malformed)
        return len(self) + self.n_heartbeats + others

    @property
    def n_heartbeats(self) -> int:
        """Number of records without a value."""
        return len(self.heartbeat_offsets) - self.n_left_out_timed


class FeatureColumns(Struct):
    """Features of the rankings of a batch.

    `names[b]` are the feature names of row b, None for a row without features. `values` is flat: of
    each row with features, candidate after candidate, numbers in the order of the names.
    `propensities[b]` is parallel to the candidates of a row that has any. `described[b]` is present
    for a row without features whose candidates are described.
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
    """Names of features without names in the message.

    >>> plain_feature_names(2)
    ('f0', 'f1')
    """
    return tuple(f"f{index}" for index in range(n_features))


class ServedList(NamedTuple):
    """Exposure and propensities of a served order, by rank; None without.

    Bit r of `exposed` is set if the candidate at rank r + 1 was exposed. `propensities` are those
    of the candidates at rank 1, 2, ...
    """

    exposed: int | None = None
    propensities: Sequence[float] | None = None


class Ranks(NamedTuple):
    """Ranks of stored rankings instead of their scores; see `RankedLists`."""

    ranks: NDArray[np.uint16]
    top_scores: FloatArray
    n_ranked: IntArray
    ties: tuple[NDArray[np.uint16], NDArray[np.uint16]] | None
    served: Mapping[int, ServedList] = {}


class RankingColumns(Columns, WithTexts):
    """Decoded rankings of one partition.

    `candidate_ids` is flat: the ids of row 0, of row 1, ... in message order, repeated ids
    included; row b has `candidate_counts[b]` of them. `scores` is flat too: for row b one run
    of `candidate_counts[b]` finite numbers per ranker of its stratum, 0.0 for -0.0 and NaN for an
    absent score. `explicit_ranks[b]` is present for a row with `ranks`: the served order is by
    rank ascending instead of by score descending. `subtopics[b]` and `published_ms[b]` (parallel
    to the candidates) are present for rows that have them. `features` is None unless decoded.
    `levels` is None without segments. `exposed[b]` is a byte per candidate, 1 for an exposed one,
    or the number of exposed candidates from rank 1 on. `propensities[b]` is parallel to the
    candidates. Stored rankings have `ranks`, which include the last two, but neither scores nor
    explicit ranks, nor the hashes of their keys, by which they were found.
    """

    texts: TextRows  # trace_id, node_id, query
    strata: DictionaryColumn  # of `Stratum`
    candidate_counts: IntArray
    candidate_ids: DictionaryColumn
    scores: FloatArray
    explicit_ranks: dict[int, list[int]]
    subtopics: dict[int, SubtopicsById] = field(default_factory=dict)
    published_ms: dict[int, Sequence[int | None]] = field(default_factory=dict)
    features: FeatureColumns | None = None
    levels: DictionaryColumn | None = None  # of `Levels`
    exposed: dict[int, bytes | int] = field(default_factory=dict)
    propensities: dict[int, Sequence[float]] = field(default_factory=dict)
    ranks: Ranks | None = None


class JudgmentColumns(Columns):
    """Decoded judgments of one partition.

    A grade that is null or negative in the message is withdrawn, and so are subtopics of None.
    `subtopics[b]` is present for rows that have them.
    """

    trace_ids: list[str]
    node_ids: list[str]
    sources: list[str]
    judgment_ids: list[str | None]
    grades: GradeColumns
    subtopics: dict[int, SubtopicsById] = field(default_factory=dict)


class Stratum(NamedTuple):
    """The labels that values are summed by: equal model, variant and rankers."""

    model: str
    variant: str
    rankers: tuple[str, ...]  # SERVED first, then the named scorers by name, then WEIGHTS


class LevelStratum(NamedTuple):
    """A stratum, and a level of a segment."""

    model: str
    variant: str
    rankers: tuple[str, ...]
    segment: str
    level: str


AnyStratum = Stratum | LevelStratum


class EvaluationColumns(WithRankers, Struct):
    """Evaluations of queries with the same rankers; columns are `[n_queries]` except the flat ones.

    Either all queries have a value, or `units` is None. Flat columns are row-major: `first_ranks`
    `[n_queries * n_rankers]` has ranks of the first relevant candidate, 0 for none; `top_ids` and
    `top_scores` `[n_queries * n_rankers * n_top]` the first candidates of each ranker, NaN for an
    absent score; `units` `[n_queries * n_rankers * n_measures]` values in units of 2^-40, MISSING
    (-1) for a value that the query lacks.
    """

    strata: DictionaryColumn  # of `Stratum`
    n_top: int  # candidates in each top, at most 3
    texts: TextRows  # trace_id, node_id, query
    event_times_ms: IntArray
    revisions: IntArray
    grades: GradeColumns  # running, in order of application
    first_ranks: IntArray
    top_ids: DictionaryColumn
    top_scores: FloatArray
    units: IntArray | None
    levels: DictionaryColumn | None = None  # of `Levels`; None without segments

    def __len__(self) -> int:
        return len(self.texts)


class OfferedColumns(Struct):
    """Training data of settled queries; lists are `[n_queries]`.

    `names` are feature names, None for a query without features, whose candidates and features are
    empty. `features` are `[n_candidates, n_features]`. `described` are described candidates of
    queries without features. `sources` are the numbers of judgments that were applied by maturity,
    by source.
    """

    names: list[tuple[str, ...] | None]
    candidate_ids: list[list[str]]
    features: list[FloatArray]
    propensities: list[Sequence[float] | None]
    described: list[Described | None]
    sources: list[Mapping[str, int]]


class LoggedQuery(NamedTuple):
    """Exposure and propensities of the served order of a settled query.

    `exposed` is as in `ServedList`. `candidates` has rank and propensity of the candidates that
    judgments have graded and that were ranked, in the order of their grades; the propensity is None
    without any.
    """

    exposed: int | None
    candidates: Mapping[str, tuple[int, float | None]]


class WatermarkRecord(NamedTuple):
    """Queries before number *n* have settled; all others settle at *watermark_ms* or later."""

    watermark_ms: int
    n: int


class SettledColumns(WithRankers, Struct):
    """Settled queries with the same rankers; columns are `[n_queries]`, except `units`.

    `ns` are the numbers of the queries in the order of the task. Either all queries have a value,
    or `units`, flat as in `EvaluationColumns`, is None. Grades of unjudged queries are empty.
    """

    strata: DictionaryColumn  # of `Stratum`
    ns: IntArray
    texts: TextRows  # trace_id, node_id, query
    event_times_ms: IntArray
    offsets: IntArray  # of the ranking in its log
    grades: GradeColumns
    units: IntArray | None
    offered: OfferedColumns | None = None  # with learning
    levels: DictionaryColumn | None = None  # of `Levels`; None without segments
    logged: Sequence["LoggedQuery | None"] | None = None  # None if no ranking has any
    silent: NDArray[np.bool_] | None = None  # None if no query is silent

    def __len__(self) -> int:
        return len(self.ns)


class FinalWindow(NamedTuple):
    """Exact running sums of one final event-time window."""

    start_ms: int
    model: str
    variant: str
    ranker: str
    measure: str  # canonical name
    queries: int
    sum_units: int


class Outputs(Struct):
    """All outputs of one batch.

    `finished` are the last revisions of the expired queries. The numbers of all parts of `settled`
    together have no gap, also between batches. `watermark_record` comes after them.
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

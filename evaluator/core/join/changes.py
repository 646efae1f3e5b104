"""Types of stored state: queries of the disk tier, changes, heads and checkpoints."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.columns.key_hashes import NO_KEYS, Key, KeyHashes
from evaluator.core.event_time.timers import Entries, Run
from evaluator.core.join.judgments import PendingJudgment
from evaluator.core.measures.align import RankedLists
from evaluator.core.measures.exact_sums import StratumTotals, Sums
from evaluator.core.types.records import (
    LOGS,
    AnyStratum,
    IntArray,
    JudgmentColumns,
    Log,
    RankingColumns,
    Stratum,
)
from evaluator.core.types.skips import OffsetRange

KEY_VERSION = np.dtype(
    [("offset", "<i8"), ("event_ms", "<i8"), ("named_ms", "<i8"), ("hash", "V16")]
)
"""A query of a key: offset of its ranking, its event time, and event time and hash of the latest
ranking of the key."""

Versions = NDArray[np.void]
"""The queries of one key, KEY_VERSION, the latest first."""

NO_VERSIONS: Final[Versions] = np.empty(0, KEY_VERSION)
"""Of a free key."""


class VersionsOfKeys(NamedTuple):
    """The queries of several keys, key by key: `counts` is `[n_keys]`."""

    counts: IntArray
    queries: Versions

    def each(self) -> list[Versions]:
        """The versions of each key."""
        return np.split(self.queries, np.cumsum(self.counts)[:-1])

    @classmethod
    def joined(cls, versions: Sequence[Versions]) -> "VersionsOfKeys":
        """VersionsOfKeys in columns."""
        counts = np.array([len(each) for each in versions], np.int64)
        return cls(counts, np.concatenate([NO_VERSIONS, *versions]))


class StoredQueries(Struct):
    """Stored queries: their messages and results.

    `rankings` has a row per query. `judgments` are the applied ones of all queries, in offset
    order. `results` are flat; `result_lengths` is `[n_queries]`, 0 for a query without a value.
    """

    rankings: RankingColumns
    judgments: JudgmentColumns
    judgment_event_times_ms: IntArray
    results: IntArray
    result_lengths: IntArray


class DiskTier(Protocol):
    """Store of the queries of the last commit, in memory or not."""

    def versions(self, keys: Sequence[Key]) -> VersionsOfKeys:
        """The queries of each key."""

    def queries(self, offsets: IntArray) -> StoredQueries:
        """Queries by the offsets of their rankings, in ascending order."""

    def entries(self, run: int) -> Entries:
        """The timer entries of a run; their rows are -1."""

    def keys(self, run: int) -> list[Key]:
        """The keys of the entries of a run."""

    def renamed(self, first: int, last: int) -> IntArray:
        """Offsets from *first* to *last* that were in a `Changes.renamed`."""

    def load_index(self, runs: Sequence[Run], released_before: int) -> None:
        """Builds the key index from the queries of these runs that are not released.

        *released_before* is as in `Changes`.
        """


class StartedRows(NamedTuple):
    """Queries that have started, `[n_started]`, in offset order; hashes are `V16`."""

    offsets: IntArray
    event_times_ms: IntArray
    hashes: NDArray[np.void]
    rankings: RankingColumns
    """Of their batch; `records` are their rows in it."""
    records: IntArray
    strata: NDArray[np.int32]
    ranked: RankedLists
    """Of their batch."""


class AppliedRows(NamedTuple):
    """Applied judgments, `[n_judgments]`; `ordinals` is how many their query had before."""

    query_offsets: IntArray
    ordinals: IntArray
    offsets: IntArray
    event_times_ms: IntArray
    timestamps_ms: IntArray
    values: ByteStrings


class Changes(Struct):
    """Changes since the last commit; each row with its last value."""

    started: list[StartedRows] = field(default_factory=list)
    applied: list[AppliedRows] = field(default_factory=list)
    applied_singly: list[tuple[int, int, PendingJudgment]] = field(default_factory=list)
    """Offset of the ranking, ordinal, judgment."""
    results: list[tuple[IntArray, IntArray, IntArray]] = field(default_factory=list)
    """Offsets of rankings `[n]`, lengths of their results `[n]`, results, flat."""
    single_keys: KeyHashes = field(default_factory=lambda: NO_KEYS)
    single_versions: Versions = field(default_factory=lambda: NO_VERSIONS)
    """Changed keys with one query each, and that query, `[n_keys]`."""
    versions: dict[Key, Versions] = field(default_factory=dict)
    """Changed keys with several queries, or none."""
    renamed: list[int] = field(default_factory=list)
    """Offsets of queries whose key has other queries or further rankings, unless released."""
    early: dict[int, PendingJudgment | None] = field(default_factory=dict)
    """By offset; None for a judgment that is no longer early."""
    expired_before: int = 0
    """Offset of the first ranking whose query has not expired."""
    released_before: int = 0
    """Offset of the first ranking whose query is still in the run in which it started."""
    runs: dict[int, tuple[Run, KeyHashes] | None] = field(default_factory=dict)
    """By number, with the keys of its entries; None for a run that has ended."""
    totals: dict[AnyStratum, StratumTotals | None] = field(default_factory=dict)
    """None for those of a level that is no longer kept."""
    windows: dict[int, dict[Stratum, Sums]] = field(default_factory=dict)
    """By start; empty for a final window."""


class LastRecord(NamedTuple):
    """The last record that was read from a log; it identifies the log."""

    offset: int
    timestamp_ms: int
    hash: str
    """128 bits of its key and value, in hex."""


class LogId(NamedTuple):
    """Identity of a log; unknown members are None."""

    topic_id: str | None = None
    last: LastRecord | None = None


class Origin(Struct):
    """The logs of a state; `ends_lost` counts the losses of an end that was read."""

    logs: dict[Log, LogId] = field(default_factory=lambda: dict.fromkeys(LOGS, LogId()))
    ends_lost: int = 0


RANKINGS_AGAIN: Final = ("duplicate", "conflicting")
"""Outcomes of rankings of a reserved key."""
JUDGMENTS: Final = ("duplicate", "conflicting", "late", "orphan", "over_limit", "applied")
"""Outcomes of judgments, apart from early ones."""
COUNTS: Final = tuple(
    "started out_of_order with_value expired settled nothing_relevant lost".split()
)


def _nothing_read() -> dict[Log, dict[str, int]]:
    return {log: dict.fromkeys(("read", "malformed", "heartbeat"), 0) for log in LOGS}


class Ledger(Struct):
    """Counts of a task. Each part of it adds to them; members as in `Head`."""

    read: dict[Log, dict[str, int]] = field(default_factory=_nothing_read)
    again: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RANKINGS_AGAIN, 0))
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JUDGMENTS, 0))
    dead_letters: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def state(self) -> dict[str, Any]:
        """The members of `Head`."""
        return {name: deepcopy(getattr(self, name)) for name in self.__struct_fields__}

    def load(self, head: "Head") -> None:
        """Replaces the counts by those of *head*."""
        for name in self.__struct_fields__:
            mine = getattr(self, name)
            mine.clear()
            mine.update(deepcopy(getattr(head, name)))


class Head(Struct):
    """Counts, clocks and positions of a task."""

    positions: dict[Log, int]
    clocks_ms: dict[Log, int | None]
    time_index: dict[Log, list[tuple[int, int]]]
    """Of each log (clock, offset) of records that advanced the clock, in order."""
    read: dict[Log, dict[str, int]]
    again: dict[str, int]
    outcomes: dict[str, int]
    dead_letters: dict[str, int]
    counts: dict[str, int]
    delays: list[int]
    n_keys: int
    next_run: int
    origin: Origin
    skipped: dict[Log, list[OffsetRange]] = field(default_factory=dict)
    """Of each log the offsets before its position that were skipped."""
    activity: list[int] = field(default_factory=list)
    """`Activity.state` of the judgments; empty if nothing depends on it."""


class StoredTask(Struct):
    """A task at a commit, without its queries."""

    head: Head
    totals: dict[AnyStratum, StratumTotals]
    windows: dict[int, dict[Stratum, Sums]]
    early: list[PendingJudgment]
    runs: list[Run]


class Digest(NamedTuple):
    """Compares a rebuilt task with its checkpoint."""

    n_open: int
    n_early: int
    queries: int  # in the open windows
    sum_units: int  # of the values in the open windows
    weighted_units: int  # the same, each value times the start of its window


class Checkpoint(Struct):
    """Counts and totals of a task, and the offsets from which its open queries can be rebuilt.

    A rebuild ends at `head.positions`.
    """

    head: Head
    restore_offsets: dict[Log, int]
    watermark_ms: int | None
    totals: dict[AnyStratum, StratumTotals]
    digest: Digest

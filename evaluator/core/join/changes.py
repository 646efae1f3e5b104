"""What of a task is kept outside memory, as types: queries evicted, and what has changed."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from evaluator.core.event_time.timers import Entries, Run
from evaluator.core.join.judgments import PendingJudgment
from evaluator.core.measures.exact_sums import StratumTotals, Sums
from evaluator.core.types.records import (
    LOGS,
    IntArray,
    JudgmentColumns,
    Key,
    Log,
    RankingColumns,
    Stratum,
)
from evaluator.core.types.skips import OffsetRange

NAMED_QUERY = np.dtype(
    [("offset", "<i8"), ("event_ms", "<i8"), ("named_ms", "<i8"), ("hash", "V16")]
)
"""A query as its key knows it: offset of its ranking, its event time, the latest event time at
which the log named the key, and the hash of the latest well-formed ranking of the key."""

Chain = NDArray[np.void]
"""The queries of one key, NAMED_QUERY, the latest first; empty where none is known."""


NO_CHAIN: Final[Chain] = np.empty(0, NAMED_QUERY)
"""That of a key that is free."""


class Chains(NamedTuple):
    """The queries of several keys: `counts` `[n_keys]`, and they themselves, key by key."""

    counts: IntArray
    queries: Chain

    def each(self) -> list[Chain]:
        """The chain of each key."""
        return np.split(self.queries, np.cumsum(self.counts)[:-1])

    @classmethod
    def joined(cls, chains: Sequence[Chain]) -> "Chains":
        """The same chains in columns."""
        counts = np.array([len(chain) for chain in chains], np.int64)
        return cls(counts, np.concatenate([NO_CHAIN, *chains]))


@dataclass(slots=True)
class StoredQueries:
    """Queries as their log gave them: messages that count, and the results summed for them.

    `rankings` has a row per query. `judgments` are the applied ones of all of them, in offset
    order, with their event times. `results` are flat, `result_lengths` `[n_queries]`, 0 for a
    query without a value.
    """

    rankings: RankingColumns
    judgments: JudgmentColumns
    judgment_event_times_ms: IntArray
    results: IntArray
    result_lengths: IntArray


class DiskTier(Protocol):
    """Where the queries are that are not in memory: all that were there at some commit."""

    def chains(self, keys: Sequence[Key]) -> Chains:
        """The queries of each key."""

    def expect(self, keys: Sequence[Key]) -> None:
        """The chains of these keys are asked for next, and the queries in them then."""

    def queries(self, offsets: IntArray) -> StoredQueries:
        """Queries by the offsets of their rankings, which ascend."""

    def entries(self, run: int) -> Entries:
        """The entries of a run of the timers; slots are -1."""

    def keys(self, run: int) -> list[Key]:
        """The keys of the entries of a run."""

    def renamed(self, first: int, last: int) -> IntArray:
        """Offsets from *first* to *last* of queries that `Changes.renamed` once had."""

    def stands(self, runs: Sequence[Run], released_before: int) -> None:
        """A task was loaded: what of these runs is not released is all that keys name.

        *released_before* is as of `Changes`.
        """


class StartedRows(NamedTuple):
    """Queries that have started, `[n_started]`, in offset order, with the bytes of their rankings.

    `hashes` are those of the rankings, `V16`.
    """

    offsets: IntArray
    event_times_ms: IntArray
    hashes: NDArray[np.void]
    keys: list[Key]
    values: list[bytes]


class AppliedRows(NamedTuple):
    """Judgments that were applied, `[n_judgments]`, with the offsets of their rankings.

    `ordinals` counts those that their query had before.
    """

    query_offsets: IntArray
    ordinals: IntArray
    offsets: IntArray
    event_times_ms: IntArray
    timestamps_ms: IntArray
    values: Sequence[bytes]


@dataclass(slots=True)
class Changes:
    """What has changed since it was last asked for; of several changes of a thing the last stands.

    Judgments are the bytes of their messages. A run comes with the keys of its entries.
    """

    started: list[StartedRows] = field(default_factory=list)
    applied: list[AppliedRows] = field(default_factory=list)
    applied_singly: list[tuple[int, int, PendingJudgment]] = field(default_factory=list)
    """Offset of the ranking, ordinal, judgment."""
    results: list[tuple[IntArray, IntArray, IntArray]] = field(default_factory=list)
    """Offsets of rankings `[n]`, lengths of their results `[n]`, results, flat."""
    named_keys: list[Key] = field(default_factory=list)
    names: Chain = field(default_factory=lambda: NO_CHAIN)
    """Keys that name one query each, and that query, `[n_keys]`."""
    chains: dict[Key, Chain] = field(default_factory=dict)
    """Other keys, which name several queries, or none any more."""
    renamed: list[int] = field(default_factory=list)
    """Offsets of queries whose key has others too, or was named again; of those alone, as far as
    they are not released."""
    early: dict[int, PendingJudgment | None] = field(default_factory=dict)
    """By offset; None for one that waits no more."""
    expired_before: int = 0
    """Offset of the first ranking that is still needed."""
    released_before: int = 0
    """Offset of the first ranking whose query still stands in the run in which it started."""
    runs: dict[int, tuple[Run, list[Key]] | None] = field(default_factory=dict)
    """By number; None for one that has ended."""
    totals: dict[Stratum, StratumTotals] = field(default_factory=dict)
    windows: dict[int, dict[Stratum, Sums]] = field(default_factory=dict)
    """By start; empty for one that is final."""


class LastRecord(NamedTuple):
    """The last record that was read of a log: a later state of the log is known by it."""

    offset: int
    timestamp_ms: int
    hash: str
    """128 bits of its key and value, in hex."""


class LogMark(NamedTuple):
    """What a log is known by; None where that is not known."""

    topic_id: str | None = None
    last: LastRecord | None = None


@dataclass(slots=True)
class Origin:
    """The logs that a state was read from.

    `ends_lost` counts how often a log of these topics has lost an end that was read.
    """

    logs: dict[Log, LogMark] = field(default_factory=lambda: dict.fromkeys(LOGS, LogMark()))
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


@dataclass(slots=True)
class Ledger:
    """Counts of a task. Each part of it adds to them; members as in `Head`."""

    read: dict[Log, dict[str, int]] = field(default_factory=_nothing_read)
    again: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RANKINGS_AGAIN, 0))
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JUDGMENTS, 0))
    dead_letters: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def state(self) -> dict[str, Any]:
        """The members of `Head`."""
        return {each.name: deepcopy(getattr(self, each.name)) for each in fields(self)}

    def load(self, head: "Head") -> None:
        """Replaces the counts by those of *head*."""
        for each in fields(self):
            mine = getattr(self, each.name)
            mine.clear()
            mine.update(deepcopy(getattr(head, each.name)))


@dataclass(slots=True)
class Head:
    """The counts, clocks and positions of a task: what is small and always changes."""

    positions: dict[Log, int]
    clocks_ms: dict[Log, int | None]
    time_index: dict[Log, list[tuple[int, int]]]
    """Of each log (clock, offset) of records that moved it, a while apart, in order."""
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
    """Of each log the offsets before its position that were not read, as an operator asked."""


@dataclass(slots=True)
class StoredTask:
    """A whole task as it was at a commit, but for the queries on disk."""

    head: Head
    totals: dict[Stratum, StratumTotals]
    windows: dict[int, dict[Stratum, Sums]]
    early: list[PendingJudgment]
    runs: list[Run]


class Digest(NamedTuple):
    """What a rebuilt task must show to be taken for the one that a checkpoint speaks of."""

    n_open: int
    n_early: int
    queries: int
    """In the windows that are still open."""
    sum_units: int
    """Of the values in them."""
    weighted_units: int
    """The same, each value times the start of its window."""


@dataclass(slots=True)
class Checkpoint:
    """What cannot be rebuilt of a task, and where a rebuild of the rest has to begin and end.

    `head.positions` is where it ends.
    """

    head: Head
    restore_offsets: dict[Log, int]
    watermark_ms: int | None
    totals: dict[Stratum, StratumTotals]
    digest: Digest

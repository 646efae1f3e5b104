"""What the loops need from the world. Adapters match these by shape; `cli` joins the two."""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

from evaluator.core.types.records import FeatureColumns, Log
from evaluator.wire.records import LeaderOutput, Output, OutputRecord, Records
from evaluator.wire.state.task_rows import Row, Table

Partition = tuple[Log, int]


class SourceUnavailable(Exception):
    """The broker cannot be reached just now; the caller retries with backoff."""


class SourceUnusable(Exception):
    """The input can never be read as it is; the message says what to do."""


class SourceAmbiguous(SourceUnusable):
    """The input names one log twice: the caller has to say which is meant (a usage error)."""


class ResultsUnusable(Exception):
    """The results cannot be put where they were asked for (a usage error); says what to do."""


TOO_MANY_FILES: Final = "too many open files"
MORE_FILES: Final = (
    "Raise the limit of open files of this process (`ulimit -Hn`, LimitNOFILE of systemd) to 4096 "
    "or more and start again: the state on the disk is kept."
)


class StateUnusable(Exception):
    """The durable state can be neither read nor written; the message says what to do."""

    @classmethod
    def because(cls, reason: str, to_do: str) -> "StateUnusable":
        """The error with *to_do*, unless the reason is that the process has no more open files."""
        return cls(f"{reason}. {MORE_FILES if TOO_MANY_FILES in reason.lower() else to_do}")


class StateInUse(StateUnusable):
    """Another process works on the same directory."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a group has committed of one partition. `metadata` is free text of the committer."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """The tasks this process owns. `generation` grows by one with every change."""

    generation: int
    tasks: frozenset[int]


Side = Literal["before", "beyond"]
"""Where a position lies that its log does not hold: before its first record, or beyond its end."""


@dataclass(frozen=True, slots=True)
class InputHealth:
    """What is known of the inputs beside their records.

    `retention_ms` of a log is None where it is kept for ever, and missing where that is not to be
    seen; it has to be more than `needed_ms`. `outside` counts positions that their log did not
    hold when they were to be read on from, `lost` the records that were gone before that.
    """

    needed_ms: int
    retention_ms: Mapping[Log, int | None] = field(default_factory=dict)
    outside: Mapping[tuple[Log, Side], int] = field(default_factory=dict)
    lost: Mapping[Log, int] = field(default_factory=dict)


class Source(Protocol):
    """The two input logs, read as a member of a group.

    A task is partition p of both logs. Handover: when `revoking` intervals true the owner stops
    receiving, finishes and commits what it has, and calls `release`; until then (or until a
    timeout of the adapter) the group waits. Afterwards `assignment` has a new generation.
    Newly assigned partitions deliver nothing until the owner has called `seek` for them.
    """

    async def start(self) -> None:
        """Connects, checks topics, joins the group. Raises SourceUnavailable, SourceUnusable."""

    @property
    def assignment(self) -> Assignment | None:
        """None until the group has spoken for the first time."""

    @property
    def revoking(self) -> bool: ...

    def release(self) -> None: ...

    def at_work(self) -> None:
        """The owner is at work, though it does not poll; the group may expel who is silent."""

    async def identity(self) -> Mapping[str, str]:
        """What tells these inputs from others, and so their state: names and values."""

    async def topic_ids(self) -> Mapping[Log, str]:
        """What tells each log from others of its name, if known. SourceUnusable: other counts."""

    async def records_at(
        self, places: Collection[tuple[Partition, int]]
    ) -> Mapping[tuple[Partition, int], Records | None]:
        """Single records, before the ends of logs, if there; None of skipped or damaged ones."""

    async def checkpoints(self, tasks: Collection[int]) -> Mapping[int, Mapping[bytes, bytes]]:
        """The latest checkpoint of each key, of each task."""

    async def beginning(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The first offset still there."""

    async def end(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The offset that the next record will get (read committed: the last stable one)."""

    async def committed(self, partitions: Sequence[Partition]) -> Mapping[Partition, Committed]:
        """Partitions without a commit are missing from the answer."""

    def seek(self, partition: Partition, offset: int) -> None: ...

    async def poll(
        self, partitions: Sequence[Partition], *, max_records: int, timeout_ms: int
    ) -> list[Records]:
        """Up to *max_records* records altogether from these partitions, or [] after the timeout.

        At most one batch for each. [] early when a handover begins. Raises SourceUnavailable.
        """

    def skip(self, partition: Partition, ranges: Sequence[tuple[int, int]]) -> None:
        """Delivers no record of these offsets from now on, even if they cannot be read."""

    def known_end(self, partition: Partition) -> int | None:
        """End offset as of the last fetch, without asking the broker; None if not heard yet."""

    async def commit(self, commits: Mapping[Partition, Committed]) -> bool:
        """False if the group is rebalancing and takes no commits. Raises SourceUnavailable."""

    async def append_heartbeat(self, partition: Partition, timestamp_ms: int) -> bool:
        """Appends a heartbeat; False if its timestamp is refused. Raises SourceUnavailable."""

    async def broker_time_ms(self) -> int | None:
        """What the broker's clock shows; None where its topics have the times of producers.

        Appends a record to do so, which `checkpoints` never returns. Raises SourceUnavailable.
        """

    async def stop(self) -> None:
        """Leaves the group and closes; safe to call at any moment, also twice."""


class Sink(Protocol):
    """The outputs. Records of one (output, partition) become visible in the order of `emit`."""

    refused: int  # outputs so far that were too large for their topic

    async def start(self) -> None:
        """Connects and checks the output topics. Raises SourceUnavailable or SourceUnusable."""

    async def emit(
        self, records: Mapping[tuple[Output, int], Sequence[OutputRecord]]
    ) -> Awaitable[None]:
        """Hands records over, repeated in order until the awaitable or the sink ends."""

    async def stop(self) -> None:
        """Waits for what was emitted (bounded by the adapter's own limit), then closes."""


class Fenced(Exception):
    """Another leader has taken leadership: nothing of what was published became visible."""


@dataclass(frozen=True, slots=True)
class SettledRecords:
    """Consecutive records of one partition of `settled`, as they were read; lists are parallel.

    Fingerprints and generations are those of the headers, b"" without. Offsets may have gaps.
    """

    task: int
    offsets: list[int]
    values: list[bytes]
    fingerprints: list[bytes]
    generations: list[bytes]
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets)


class Leadership(Protocol):
    """What leaders share: who of them is leader, what has settled, what was published.

    All may follow what is published in `weights`; the group elects one that may read `settled`
    and publish. Everything raises SourceUnavailable where the broker does not answer, and
    SourceUnusable where it never will.
    """

    async def start(self) -> int:
        """Connects, checks the topics and stands for election; how many tasks there are."""

    @property
    def elected(self) -> bool:
        """Whether this one is to be leader now."""

    async def follow(self, *, timeout_ms: int) -> list[OutputRecord]:
        """Further records of `weights`, at first from the beginning; or [] after the timeout.

        A key that was deleted has the value b"". Returns [] early when `elected` changes.
        """

    async def begin_epoch(self) -> list[OutputRecord]:
        """Takes leadership: nobody who was in it before can publish any more.

        Returns the rest of `weights`, to the end of what has been published.
        """

    async def seek(self, task: int, offset: int) -> None:
        """Reads a partition of `settled` on from there, or from the first record after it."""

    async def read(
        self, tasks: Collection[int], *, max_records: int, timeout_ms: int
    ) -> list[SettledRecords]:
        """Up to *max_records* further records of partitions that were sought; [] after the
        timeout, and early when `elected` changes.
        """

    async def publish(self, records: Sequence[tuple[LeaderOutput, OutputRecord]]) -> None:
        """Makes all of these visible, in this order within a topic, or none of them.

        Raises Fenced. After SourceUnavailable it is not known which, until `begin_epoch`.
        """

    async def stop(self) -> None:
        """Leaves the group and closes; safe to call at any moment, also twice."""


class StateBatch(Protocol):
    """Changes of rows that a store takes whole or not at all, in this order."""

    def put(self, table: Table, rows: Iterable[Row]) -> None:
        """Writes rows; deletes those whose value is None."""

    def delete_range(self, table: Table, first: bytes, end: bytes) -> None:
        """Deletes the rows with a key of at least *first* and before *end*."""

    def write(self) -> None:
        """Writes the batch to its store, once: all of it or, whatever happens, nothing."""


class StateStore(Protocol):
    """The durable state of one task: tables of rows in the order of their keys.

    Everything raises StateUnusable where the medium refuses, and StateDamaged where it returns
    what was never written.
    """

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of rows; None where there is no row."""

    def expect(self, table: Table, keys: Sequence[bytes]) -> None:
        """These rows are asked for next, and not changed before: they may be read meanwhile."""

    def rows(
        self, table: Table, first: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a table, in order, with a key of at least *first* and before *end*."""

    def let_go(self, table: Table, end: bytes) -> None:
        """Nobody asks again for rows of *table* before *end*: they may be deleted, or stay.

        Not before all that was written up to now is safe from power cuts.
        """

    def batch(self) -> StateBatch:
        """An empty batch."""

    def n_bytes(self) -> int:
        """About how much room the store takes."""

    def close(self) -> None:
        """Lets go of it; safe to call twice. What was written stays."""


class StateDirectory(Protocol):
    """Where the stores of the tasks are. Held by one process at a time."""

    def hold(self) -> None:
        """Takes hold of the directory. Raises StateInUse or StateUnusable."""

    def open(self, task: int) -> StateStore:
        """The store of a task, made if there is none. Raises StateUnusable or StateDamaged."""

    def quarantine(self, task: int) -> str:
        """Moves a closed store out of the way, in the place of the one before: where it is now."""

    def release(self) -> None:
        """Lets go of the directory; its stores are closed."""


UNKNOWN_END: Final = 2**63 - 1
"""End offset of a log whose end shows only when it is read (files)."""


class RangeSource(Protocol):
    """The two input logs, read once from a pinned range, as a member of no group."""

    async def open(self) -> int:
        """Connects, checks, pins the ends; the partition count of both logs.

        Raises SourceUnavailable or SourceUnusable.
        """

    async def bounds(self, log: Log, partition: int) -> tuple[int, int]:
        """First offset and end offset, pinned at `open`; the end may be UNKNOWN_END."""

    async def seek_hint(self, log: Log, partition: int, record_timestamp_ms: int) -> int:
        """The first offset whose record timestamp is at least that, or the end; the first one
        where the medium has no record timestamps.
        """

    def read(
        self, log: Log, partition: int, start: int, end: int, *, max_records: int
    ) -> AsyncIterator[Records]:
        """The records from *start* up to *end* or the pinned end, in batches.

        A partition of one log and one of the other may be read at the same time. The iterator
        may be left early. Raises SourceUnavailable or SourceUnusable.
        """

    async def close(self) -> None:
        """Lets go of everything; safe to call at any moment, also twice."""


@runtime_checkable
class KnowsFeatures(Protocol):
    """A source that keeps the features of its rankings beside the messages."""

    def features_of(self, offsets: Sequence[int]) -> FeatureColumns:
        """Of the rankings at these offsets, in this order."""


SortKey = tuple[int | str, ...]


class ResultFile(NamedTuple):
    """What a finished file of results is known by."""

    rows: int
    size_bytes: int
    sha256: str


class Results(Protocol):
    """The files that a replay leaves behind: all of them, complete, or none.

    Used as a context manager; leaving it without `commit` leaves nothing. Whatever writes raises
    ResultsUnusable where the medium refuses.
    """

    def __enter__(self) -> "Results":
        """Raises ResultsUnusable."""

    def __exit__(self, *exc_info: object) -> None: ...

    def write(self, name: str, lines: Iterable[bytes]) -> None:
        """Appends lines (without their newline) to a file, which comes to be if need be."""

    def sort(self, name: str, rows: Iterable[tuple[SortKey, bytes]]) -> None:
        """Puts rows aside to be sorted by their keys; keys of one name are of one type."""

    def sorted_rows(self, name: str) -> Iterator[tuple[SortKey, bytes]]:
        """The rows put aside under this name, sorted, once."""

    def finish(self, name: str) -> ResultFile:
        """Ends a file; nothing can be written to it any more."""

    def commit(self) -> None:
        """Makes all finished files appear, in the order in which they were finished."""

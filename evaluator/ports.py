"""Ports of the loops, as Protocols. Adapters implement them by shape; `cli` connects them."""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Final, Literal, NamedTuple, Protocol

from msgspec import Struct, field

from evaluator.core.types.records import LOGS, Log
from evaluator.wire.records import LeaderOutput, Output, OutputRecord, Records, SettledRecords
from evaluator.wire.state.task_rows import Row, Table

Partition = tuple[Log, int]
RecordAt = tuple[Partition, int]
"""The offset of a record in its partition."""
Lane = tuple[Output, int]
"""An output and one of its partitions."""


class Place(Struct, frozen=True):
    """The place of two logs: cluster, names and ids of the topics, partitions of each.

    The id of a topic that is not known is missing.
    """

    cluster: str
    topics: Mapping[Log, str]
    topic_ids: Mapping[Log, str]
    partitions: int

    def identity(self) -> dict[str, str]:
        """Properties that a store shares with its task; ids are compared separately."""
        return {"cluster": self.cluster, **{str(log): name for log, name in self.topics.items()}}

    def as_document(self) -> dict[str, object]:
        """Fit for JSON, without names."""
        ids = {str(log): self.topic_ids.get(log) for log in LOGS}
        return {"cluster": self.cluster, "topic_ids": ids, "partitions": self.partitions}


class SourceUnavailable(Exception):
    """The broker is unavailable; the caller retries with backoff."""

    what = "broker"
    remedy = "Check --source, the network and security_protocol."


class RegistryUnavailable(SourceUnavailable):
    """The schema registry is unavailable, so records cannot be read yet."""

    what = "schema registry"
    remedy = "Check `registry` of the mapping, registry_username and registry_cafile."


Prepare = Callable[[Collection[Records]], Awaitable[None]]
"""Prepares the decoding of these records before they are delivered. Raises SourceUnavailable."""


class SourceUnusable(Exception):
    """The input cannot be used without a change; the message has the remedy."""


class SourceAmbiguous(SourceUnusable):
    """The input contains one log twice; the user has to choose (a usage error)."""


class RequestRefused(Exception):
    """A request of the command line is impossible (a usage error); the message has the remedy."""


class ResultsUnusable(RequestRefused):
    """The results cannot be written."""


class Finding(NamedTuple):
    """The result of a check: its severity, its text, and the action (empty if there is none)."""

    severity: Literal["ok", "warning", "error"]
    what: str
    what_to_do: str = ""


TOO_MANY_FILES: Final = "too many open files"
MORE_FILES: Final = (
    "Raise the limit of open files of this process (`ulimit -Hn`, LimitNOFILE of systemd) to 4096 "
    "or more and start again: the state on the disk is kept."
)


class StateUnusable(Exception):
    """The durable state cannot be read or written; the message has the remedy."""

    @classmethod
    def because(cls, reason: str, action: str) -> "StateUnusable":
        """The error with *action*, or with MORE_FILES if the process has too many open files."""
        return cls(f"{reason}. {MORE_FILES if TOO_MANY_FILES in reason.lower() else action}")


class StateInUse(StateUnusable):
    """Another process uses the same directory."""


class Fenced(Exception):
    """Another process has become the leader; no record of the publication is visible."""


class Committed(Struct, frozen=True):
    """The commit of a group for one partition. `metadata` is free text of the committer."""

    offset: int
    metadata: str


class Progress(NamedTuple):
    """The commit of a partition, None without one, and the end of its log."""

    committed: Committed | None
    end: int


class Assignment(Struct, frozen=True):
    """The tasks of this process. `generation` increases by one with every change."""

    generation: int
    tasks: frozenset[int]


Side = Literal["before", "beyond"]
"""Side of a position outside its log: before the first record, or beyond the end."""


class InputHealth(Struct, frozen=True):
    """Retention and losses of the inputs.

    `retention_ms` of a log is None if it is unlimited, missing if it cannot be read; it has to
    exceed `needed_ms`. `outside` counts positions outside their log, `lost` the records that
    expired before they were read.
    """

    needed_ms: int
    retention_ms: Mapping[Log, int | None] = field(default_factory=dict)
    outside: Mapping[tuple[Log, Side], int] = field(default_factory=dict)
    lost: Mapping[Log, int] = field(default_factory=dict)


class Source(Protocol):
    """The two input logs, read as a member of a group.

    A task is partition p of both logs. Handover: when `revoking` becomes true the owner stops
    reading, commits its processed records, and calls `release`; until then, or until a timeout of
    the adapter, the group waits. Then `assignment` has a new generation. Assigned partitions
    deliver no records until the owner has called `seek`. Coroutines raise SourceUnavailable.
    """

    async def start(self) -> None:
        """Connects, checks topics, joins the group. Raises SourceUnusable."""

    @property
    def assignment(self) -> Assignment | None:
        """None before the first assignment."""

    @property
    def revoking(self) -> bool: ...

    def release(self) -> None: ...

    def stay_in_group(self) -> None:
        """Keeps the member in the group while it does not poll."""

    async def place(self) -> Place:
        """The place of the inputs, which distinguishes them, and so their state, from others."""

    async def topic_ids(self) -> Mapping[Log, str]:
        """The ids of the topics, if known. Raises SourceUnusable if partition counts changed."""

    async def records_at(self, places: Collection[RecordAt]) -> Mapping[RecordAt, Records | None]:
        """The existing records at these offsets; None for skipped or damaged ones."""

    async def checkpoints(self, tasks: Collection[int]) -> Mapping[int, Mapping[bytes, bytes]]:
        """The latest checkpoint of each key, of each task."""

    async def beginning(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The first offset that has not expired."""

    async def end(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The offset of the next record (read committed: the last stable offset)."""

    async def committed(self, partitions: Sequence[Partition]) -> Mapping[Partition, Committed]:
        """Commits of the group, without the partitions that have none."""

    def seek(self, partition: Partition, offset: int) -> None: ...

    async def poll(
        self, partitions: Sequence[Partition], *, max_records: int, timeout_ms: int
    ) -> list[Records]:
        """At most *max_records* records of these partitions, in one batch for each; [] after the
        timeout, or when a handover begins.
        """

    def skip(self, partition: Partition, ranges: Sequence[tuple[int, int]]) -> None:
        """Skips these offsets, also of unreadable records."""

    def known_end(self, partition: Partition) -> int | None:
        """End offset as of the last fetch; None before that."""

    async def commit(self, commits: Mapping[Partition, Committed]) -> bool:
        """False if the group is rebalancing and refuses commits."""

    async def append_heartbeat(self, partition: Partition, timestamp_ms: int) -> bool:
        """Appends a heartbeat; False if the broker refuses its timestamp."""

    async def broker_time_ms(self) -> int | None:
        """The broker's clock, read by a probe record; None if topics have producer timestamps."""

    async def stop(self) -> None:
        """Leaves the group and closes; safe to call at any time, also twice."""


class Sink(Protocol):
    """The outputs. Records of one (output, partition) become visible in the order of `emit`."""

    refused: int  # number of outputs that were too large for their topic

    async def start(self) -> None:
        """Connects and checks the output topics. Raises SourceUnavailable or SourceUnusable."""

    async def emit(self, records: Mapping[Lane, Sequence[OutputRecord]]) -> Awaitable[None]:
        """Accepts records, and retries them in order until acknowledged or stopped."""

    async def stop(self) -> None:
        """Waits for emitted records (bounded by the adapter's own limit), then closes."""


class Leadership(Protocol):
    """The topics of the leader, and its election.

    Every eligible process may follow `weights`; the leader alone reads `settled` and publishes.
    Every method raises SourceUnavailable, and SourceUnusable if the topics cannot be used.
    """

    async def start(self) -> int:
        """Connects, checks the topics and joins the election; returns the number of tasks."""

    @property
    def elected(self) -> bool:
        """Whether this process is elected now."""

    async def follow(self, *, timeout_ms: int) -> list[OutputRecord]:
        """New records of `weights`, from the beginning at first; [] after the timeout, and early
        when `elected` changes. The value of a deleted key is b"".
        """

    async def begin_epoch(self) -> list[OutputRecord]:
        """Takes leadership, which fences earlier leaders; returns the rest of `weights`."""

    async def seek(self, task: int, offset: int) -> None:
        """Sets the next offset of a partition of `settled`; records may begin after it."""

    async def read(
        self, tasks: Collection[int], *, max_records: int, timeout_ms: int
    ) -> list[SettledRecords]:
        """At most *max_records* new records of partitions with a position; [] after the timeout,
        and early when `elected` changes.
        """

    async def publish(self, records: Sequence[tuple[LeaderOutput, OutputRecord]]) -> None:
        """Makes all of these visible, in this order within a topic, or none. Raises Fenced.

        After SourceUnavailable the result is unknown until `begin_epoch`.
        """

    async def stop(self) -> None:
        """Leaves the election and closes; safe to call at any time, also twice."""


class StateBatch(Protocol):
    """Changes of rows, written in order and atomically."""

    def put(self, table: Table, rows: Iterable[Row]) -> None:
        """Writes rows; deletes those whose value is None."""

    def delete_range(self, table: Table, first: bytes, end: bytes) -> None:
        """Deletes the rows from key *first* to before *end*."""

    def write(self) -> None:
        """Writes the whole batch or, on any failure, no row of it."""


class StateStore(Protocol):
    """The durable state of one task: tables of rows in the order of their keys.

    Every method raises StateUnusable if the medium fails, StateDamaged if its rows are corrupt.
    """

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of rows; None for missing rows."""

    def rows(
        self, table: Table, first: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a table from key *first* to before *end*, in order."""

    def discard_before(self, table: Table, end: bytes) -> None:
        """Allows the store to delete the rows before *end*, which are not read again.

        They are deleted only after all earlier writes are safe from power loss.
        """

    def batch(self) -> StateBatch:
        """An empty batch."""

    def n_bytes(self) -> int:
        """Approximate size of the store in bytes."""

    def close(self) -> None:
        """Closes the store; written rows remain. Safe to call twice."""


class StateDirectory(Protocol):
    """The stores of the tasks. Held by one process at a time."""

    def hold(self) -> None:
        """Locks the directory. Raises StateInUse or StateUnusable."""

    def open(self, task: int) -> StateStore:
        """The store of a task, created if needed. Raises StateUnusable or StateDamaged."""

    def quarantine(self, task: int) -> str:
        """Moves a closed store away and returns its place; replaces the previous quarantine."""

    def release(self) -> None:
        """Unlocks the directory; its stores are closed."""


UNKNOWN_START: Final = -1
"""First offset of a log whose start is unknown before its first record."""
UNKNOWN_END: Final = 2**63 - 1
"""End offset of a log whose end is known only after it was read (files)."""


class RangeSource(Protocol):
    """A pinned range of the two input logs, read once and without a group.

    Coroutines raise SourceUnavailable or SourceUnusable.
    """

    @property
    def place(self) -> Place | None:
        """The place of the logs, available after `open`; None for files."""

    async def open(self) -> int:
        """Connects, checks and pins the ends; returns the partition count of both logs."""

    async def bounds(self, log: Log, partition: int) -> tuple[int, int]:
        """First offset, or UNKNOWN_START, and the end pinned at `open`, or UNKNOWN_END."""

    async def seek_hint(self, log: Log, partition: int, record_timestamp_ms: int) -> int:
        """The first offset with at least that record timestamp, or the end; the first offset if
        records have no timestamps.
        """

    def read(
        self, log: Log, partition: int, start: int, end: int, *, max_records: int
    ) -> AsyncIterator[Records]:
        """The records from *start* to before *end* or the pinned end, in batches.

        One partition of each log may be read at the same time, and a read may end early.
        """

    async def close(self) -> None:
        """Closes everything; safe to call at any time, also twice."""

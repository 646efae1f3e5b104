"""Leadership on Kafka: the election, `settled`, and the topics of the weights."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeVar

from evaluator.adapters.kafka.administration import (
    CLEANUP,
    described,
    leader_topics,
    transactional_id,
)
from evaluator.adapters.kafka.aiokafka_fetches import columns_of
from evaluator.adapters.kafka.assignment import require_alike
from evaluator.adapters.kafka.clients import (
    end,
    existing_counts,
    input_topics,
    requests,
    require_partitions,
    unequal_counts,
)
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.election import Election, not_one_partition
from evaluator.adapters.kafka.membership import GroupSettings
from evaluator.adapters.kafka.producers import Publisher, TopicRecord
from evaluator.adapters.kafka.topic_reader import Fetched, TopicReader
from evaluator.ports import SourceUnavailable, SourceUnusable
from evaluator.wire.native.record_sets import RecordColumns
from evaluator.wire.records import (
    LeaderOutput,
    OutputRecord,
    SettledRecords,
    kept,
    kept_whole,
    unpacked_headers,
)

_STOP_SECONDS: Final = (1.0, 3.0)
"""Time for operations to end at a stop, and again after their cancellation."""

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate["KafkaLeadership", P], Coroutine[Any, Any, T]]


def _unless_stopped(operation: Operation[P, T]) -> Operation[P, T]:
    """The same method, which raises SourceUnavailable if `stop` is called before its end.

    aiokafka leaks a connection that is closed or cancelled while it is opened, so a running
    operation has some time to end by itself.
    """

    @functools.wraps(operation)
    async def run(self: "KafkaLeadership", /, *arguments: P.args, **named: P.kwargs) -> T:
        if self._stopped:
            raise SourceUnavailable("The leader was stopped.")
        task = asyncio.ensure_future(operation(self, *arguments, **named))
        self._running.add(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await end(task)
            if not task.cancelled() and task.exception() is None:
                self._take_back(task.result())
            raise
        finally:
            self._running.discard(task)
            await end(task)
        if task.cancelled():
            raise SourceUnavailable("The leader was stopped meanwhile.")
        return task.result()

    return run


class _SettledReader(TopicReader):
    """Reads whole values and their headers, in columns."""

    settings: ClassVar[Mapping[str, Any]] = {
        **TopicReader.settings,
        "fetch_min_bytes": 2 * 1024 * 1024,  # larger batches cost less
        "fetch_max_wait_ms": 500,  # results of the leader are not urgent
        "key_deserializer": kept,
        "value_deserializer": kept_whole,
    }


class KafkaLeadership:
    """Implements `evaluator.ports.Leadership` on Kafka.

    One consumer joins the election, one follows `weights`, one reads `settled`. After
    SourceUnavailable the same object can be used: repeat the call; `begin_epoch` before `publish`.
    """

    def __init__(self, connection: Connection, workers: GroupSettings) -> None:
        prefix = workers.topic_prefix
        self._connection = connection
        self._workers = workers
        self._inputs = input_topics(prefix, connection)
        self._rankings = self._inputs["rankings"]
        self._settled_topic = f"{prefix}settled"
        self._topics = leader_topics(prefix)
        self._election = Election(connection, workers, self._topics["weights"])
        self._weights = TopicReader(connection, self._topics["weights"])
        self._settled = _SettledReader(connection, self._settled_topic)
        self._publisher = Publisher(connection, transactional_id(prefix, workers.group_id))
        self._unread: dict[bytes | None, OutputRecord] = {}  # of a failed or cancelled call
        self._secrets: object = None
        self._joined = self._stopped = False
        self._running: set[asyncio.Future[Any]] = set()

    # Start and stop

    @_unless_stopped
    async def start(self) -> int:
        self._joined, self._secrets = False, self._connection.secrets()
        await self._compare_meaning()
        n_tasks = await self._check_topics()
        await self._close()
        await self._election.join()
        self._joined = True
        return n_tasks

    async def stop(self) -> None:
        self._stopped = True
        self._election.changed.set()
        for seconds in _STOP_SECONDS:
            if self._running:
                await asyncio.wait(self._running, timeout=seconds)
            for task in self._running:
                task.cancel()
        await self._close()

    async def _close(self) -> None:
        """Closes all clients concurrently: without brokers each takes some time."""
        await asyncio.gather(
            self._publisher.abandon(),
            self._election.leave(),
            self._weights.close(),
            self._settled.close(),
        )

    async def _check_topics(self) -> int:
        wanted = [self._rankings, self._settled_topic, *self._topics.values()]
        counts = await existing_counts(self._connection, wanted)
        n_tasks = counts[self._rankings]
        if counts[self._settled_topic] < n_tasks:
            await self._compare_inputs(n_tasks)
        require_partitions(self._settled_topic, counts[self._settled_topic], n_tasks)
        for name in self._topics.values():
            if counts[name] != 1:
                raise SourceUnusable(not_one_partition(name, counts[name]))
        await self._check_cleanup()
        return n_tasks

    async def _compare_meaning(self) -> None:
        """Raises SourceUnusable if workers have another meaning, as far as this user may see them.

        Otherwise the leader would ignore all queries that they settle.
        """
        members = list[tuple[str, bytes]]()
        with contextlib.suppress(SourceUnusable):  # no right: a leader needs none on their group
            async with requests(self._connection) as asking:
                members = await asking.members(self._workers.group_id)
        require_alike(self._workers, members)

    async def _compare_inputs(self, n_rankings: int) -> None:
        """Raises SourceUnusable if the inputs are unequal, as far as this user may see them."""
        judgments = self._inputs["judgments"]
        counts = {self._rankings: n_rankings, judgments: n_rankings}
        with contextlib.suppress(SourceUnusable):  # missing, or no right: the leader needs none
            counts |= await existing_counts(self._connection, [judgments])
        if counts[judgments] != n_rankings:
            raise SourceUnusable(unequal_counts(self._inputs, counts))

    async def _check_cleanup(self) -> None:
        """Raises SourceUnusable if live weights can expire; ignores settings without a right."""
        name = self._topics["weights"]
        settings = (await described(self._connection, [name])).get(name, {})
        policy = settings.get("cleanup.policy", CLEANUP["weights"])
        if policy != CLEANUP["weights"]:
            raise SourceUnusable(
                f"Topic {name} has cleanup.policy {policy}, so the weights that are live expire. "
                f"Set cleanup.policy={CLEANUP['weights']} on {name}."
            )

    async def _live(self) -> None:
        """Raises errors of the election; joins it again if needed."""
        # A consumer reconnects with the secrets that it was created with.
        outdated = not self._election.confirmed and self._secrets != self._connection.secrets()
        if not self._joined or self._election.broken or outdated:
            await self.start()
        await self._election.poll()

    @property
    def elected(self) -> bool:
        return self._election.elected

    # Weights

    @_unless_stopped
    async def follow(self, *, timeout_ms: int) -> list[OutputRecord]:
        self._election.changed.clear()
        await self._live()
        if not self.elected:
            await self._settled.close()
        if self._unread:
            return self._take_unread()
        await self._begin_weights()
        found = await self._weights.more(
            (0,), timeout_ms=timeout_ms, changed=self._election.changed
        )
        return [_record(row) for fetched in found.values() for row in fetched.rows]

    async def _begin_weights(self) -> None:
        if not self._weights.positions:
            await self._weights.begin((0,))

    def _take_back(self, result: Any) -> None:
        """Keeps the records of a call that was cancelled at its end; the next call returns them."""
        records = result if isinstance(result, list) else []
        for each in reversed(records):  # the first records of a task are the last that are sought
            if isinstance(each, SettledRecords):
                self._settled.seek(each.task, int(each.offsets[0]))
        for each in records:
            if isinstance(each, OutputRecord):
                self._keep_unread(each)

    def _keep_unread(self, record: OutputRecord) -> None:
        self._unread.pop(record.key, None)
        self._unread[record.key] = record

    def _take_unread(self) -> list[OutputRecord]:
        taken, self._unread = list(self._unread.values()), {}
        return taken

    @_unless_stopped
    async def begin_epoch(self) -> list[OutputRecord]:
        """Fences the former leader; returns the rest of `weights`, the latest record of each key.

        Raises SourceUnavailable, SourceUnusable.
        """
        await self._live()
        await self._publisher.begin()
        self._settled.forget()
        await self._begin_weights()
        async for row in self._weights.rest((0,)):
            self._keep_unread(_record(row))
        return self._take_unread()

    # Settled queries

    async def seek(self, task: int, offset: int) -> None:
        self._settled.seek(task, offset)

    @_unless_stopped
    async def read(
        self, tasks: Collection[int], *, max_records: int, timeout_ms: int
    ) -> list[SettledRecords]:
        self._election.changed.clear()
        await self._live()
        found = await self._settled.more(
            tasks, timeout_ms=timeout_ms, changed=self._election.changed, max_records=max_records
        )
        return [each for task, fetched in found.items() for each in settled_records(task, fetched)]

    # Records of the leader

    @_unless_stopped
    async def publish(self, records: Sequence[tuple[LeaderOutput, OutputRecord]]) -> None:
        """Makes all of these visible, or none. A value b"" deletes a key.

        Raises Fenced, SourceUnusable, and SourceUnavailable if the outcome is unknown.
        """
        named = [self._topic_record(*each) for each in records]
        await self._publisher.publish(named)

    def _topic_record(self, output: LeaderOutput, record: OutputRecord) -> TopicRecord:
        value = record.value or None  # only deletions are empty
        return self._topics[output], record.key, value, record.headers


def _record(row: Any) -> OutputRecord:
    return OutputRecord(row.key, row.value or b"", tuple(row.headers))


def settled_records(task: int, fetched: Fetched) -> list[SettledRecords]:
    """The records of a partition of `settled`, without those that have no value."""
    rows = fetched.rows
    if not isinstance(rows, RecordColumns):
        rows = columns_of(rows, is_foreign=True, is_whole=True)
    rows = rows[rows.values.sizes >= 0]
    packed: Sequence[bytes | None] = rows.headers or ()
    if rows.headers is not None and rows.headers.is_uniform:
        packed = [rows.headers[0]] * len(rows)
    headers = {each: unpacked_headers(each or b"") for each in set(packed)}
    return SettledRecords.split(task, rows.offsets, rows.values, [headers[of] for of in packed])

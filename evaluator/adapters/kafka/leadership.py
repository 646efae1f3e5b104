"""What leaders share, on Kafka: an election, `settled`, and the topics of the weights."""

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Final, TypeVar

from evaluator.adapters.kafka.admin import (
    CLEANUP,
    described,
    leader_group,
    leader_topics,
    transactional_id,
)
from evaluator.adapters.kafka.connection import (
    Connection,
    ended,
    input_topics,
    requests,
    unequal,
)
from evaluator.adapters.kafka.election import Election, other_count
from evaluator.adapters.kafka.membership import (
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
)
from evaluator.adapters.kafka.publishing import Publisher, Said
from evaluator.adapters.kafka.topic_reader import Stretch, TopicReader
from evaluator.ports import SettledRecords, SourceUnavailable, SourceUnusable
from evaluator.wire.records import FINGERPRINT_HEADER, GENERATION_HEADER, LeaderOutput, OutputRecord

_PATIENCE_MS: Final = 1000
_END_SECONDS: Final = 3.0
"""How long a cancelled operation may take to end."""

T = TypeVar("T")


class KafkaLeadership:
    """Implements `evaluator.ports.Leadership` on Kafka.

    One consumer joins the election, one follows `weights`, one reads `settled`. After
    SourceUnavailable the same object can be used: repeat the call; `begin_epoch` before `publish`.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        group_id: str,
        topic_prefix: str = "",
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
    ) -> None:
        self._connection = connection
        self._inputs = input_topics(topic_prefix)
        self._rankings = self._inputs["rankings"]
        self._settled_topic = f"{topic_prefix}settled"
        self._topics = leader_topics(topic_prefix)
        self._election = Election(
            connection,
            group_id=leader_group(group_id),
            topic=self._topics["weights"],
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        self._weights = TopicReader(connection, self._topics["weights"])
        self._settled = TopicReader(connection, self._settled_topic)
        self._publisher = Publisher(connection, transactional_id(topic_prefix, group_id))
        self._ahead: dict[bytes | None, OutputRecord] = {}
        self._secrets: object = None
        self._standing = self._stopped = False
        self._running: set[asyncio.Future[Any]] = set()

    # Coming and going

    async def start(self) -> int:
        """Connects, checks the topics and joins the election; returns the number of tasks.

        Raises SourceUnavailable, SourceUnusable. May be repeated.
        """
        return await self._unless_stopped(self._start())

    async def _start(self) -> int:
        self._standing, self._secrets = False, self._connection.secrets()
        n_tasks = await self._check_topics()
        await self._close()
        await self._election.stand()
        self._standing = True
        return n_tasks

    async def stop(self) -> None:
        """Leaves the group and closes; safe to call at any moment, also twice."""
        self._stopped = True
        self._election.changed.set()
        for seconds in (_PATIENCE_MS / 1000, _END_SECONDS):
            if self._running:
                await asyncio.wait(self._running, timeout=seconds)
            for task in self._running:
                task.cancel()
        await self._close()

    async def _unless_stopped(self, doing: Coroutine[Any, Any, T]) -> T:
        """The result of *doing*; raises SourceUnavailable if `stop` is called before its end.

        The library leaves a connection behind that is closed or cancelled while it is made, so
        what is under way may end by itself for a moment.
        """
        if self._stopped:
            doing.close()
            raise SourceUnavailable("The leader was stopped.")
        task = asyncio.ensure_future(doing)
        self._running.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._running.discard(task)
            await ended(task)
        if task.cancelled():
            raise SourceUnavailable("The leader was stopped meanwhile.")
        return task.result()

    async def _close(self) -> None:
        """Closes all clients concurrently: without brokers each takes some time."""
        await asyncio.gather(
            self._publisher.abandon(),
            self._election.withdraw(),
            self._weights.close(),
            self._settled.close(),
        )

    async def _check_topics(self) -> int:
        wanted = [self._rankings, self._settled_topic, *self._topics.values()]
        async with requests(self._connection) as asking:
            counts = await asking.partition_counts(wanted)
        missing = [name for name in wanted if counts[name] is None]
        if missing:
            raise SourceUnusable(
                f"Topic {', '.join(missing)} not found. Create what is missing with `evaluator "
                "topics create`, or check topic_prefix."
            )
        n_tasks = counts[self._rankings] or 0
        if (counts[self._settled_topic] or 0) < n_tasks:
            await self._compare_inputs(n_tasks)
            raise SourceUnusable(
                f"Output topic {self._settled_topic} has {counts[self._settled_topic]} "
                f"partitions, the inputs have {n_tasks}. Each task writes to its own partition: "
                f"give {self._settled_topic} at least {n_tasks} partitions."
            )
        for name in self._topics.values():
            if counts[name] != 1:
                raise SourceUnusable(other_count(name, counts[name] or 0))
        await self._check_cleanup()
        return n_tasks

    async def _compare_inputs(self, n_rankings: int) -> None:
        """Raises SourceUnusable if the inputs are unequal, as far as this user may see them."""
        judgments = self._inputs["judgments"]
        counts: dict[str, int | None] = {}
        with contextlib.suppress(SourceUnusable):  # the leader needs no right on judgments
            async with requests(self._connection) as asking:
                counts = await asking.partition_counts([judgments])
        if counts.get(judgments) not in {None, n_rankings}:
            raise SourceUnusable(unequal(self._inputs, {**counts, self._rankings: n_rankings}))

    async def _check_cleanup(self) -> None:
        """Raises if live weights can expire. Logs nothing if the settings cannot be read."""
        name = self._topics["weights"]
        settings = (await described(self._connection, [name])).get(name, {})
        policy = settings.get("cleanup.policy", CLEANUP["weights"])
        if policy != CLEANUP["weights"]:
            raise SourceUnusable(
                f"Topic {name} has cleanup.policy {policy}, so the weights that are live expire. "
                f"Set cleanup.policy={CLEANUP['weights']} on {name}."
            )

    async def _live(self) -> None:
        """Raises what happened in the background; joins the election again if needed."""
        # A consumer reconnects with the secrets that it was created with.
        locked_out = not self._election.confirmed and self._secrets != self._connection.secrets()
        if not self._standing or self._election.broken or locked_out:
            await self._start()
        await self._election.show_up()

    @property
    def elected(self) -> bool:
        """Whether the group has elected this process."""
        return self._election.elected

    # What was published

    async def follow(self, *, timeout_ms: int) -> list[OutputRecord]:
        """Further records of `weights`. Raises SourceUnavailable, SourceUnusable."""
        return await self._unless_stopped(self._follow(timeout_ms))

    async def _follow(self, timeout_ms: int) -> list[OutputRecord]:
        self._election.changed.clear()
        await self._live()
        if not self.elected:
            await self._settled.close()
        if self._ahead:
            return self._taken()
        await self._begin_to_follow()
        found = await self._weights.more(
            (0,), timeout_ms=timeout_ms, changed=self._election.changed
        )
        return [_record(row) for stretch in found.values() for row in stretch.rows]

    async def _begin_to_follow(self) -> None:
        if 0 not in self._weights.positions:
            await self._weights.begin((0,))

    def _taken(self) -> list[OutputRecord]:
        taken = list(self._ahead.values())
        self._ahead = {}
        return taken

    async def begin_epoch(self) -> list[OutputRecord]:
        """Fences the former leader; returns the rest of `weights`, the latest record of each key.

        Raises SourceUnavailable, SourceUnusable.
        """
        return await self._unless_stopped(self._begin_epoch())

    async def _begin_epoch(self) -> list[OutputRecord]:
        await self._live()
        await self._publisher.begin()
        self._settled.forget()
        await self._begin_to_follow()
        async for row in self._weights.rest((0,)):
            self._ahead.pop(row.key, None)
            self._ahead[row.key] = _record(row)
        return self._taken()

    # What has settled

    async def seek(self, task: int, offset: int) -> None:
        """Reads a partition of `settled` on from there, or from the first record after it."""
        self._settled.seek(task, offset)

    async def read(
        self, tasks: Collection[int], *, max_records: int, timeout_ms: int
    ) -> list[SettledRecords]:
        """Further records of the partitions. Raises SourceUnavailable, SourceUnusable."""
        return await self._unless_stopped(self._read(tasks, max_records, timeout_ms))

    async def _read(
        self, tasks: Collection[int], max_records: int, timeout_ms: int
    ) -> list[SettledRecords]:
        self._election.changed.clear()
        await self._live()
        found = await self._settled.more(
            tasks, timeout_ms=timeout_ms, changed=self._election.changed, max_records=max_records
        )
        records = [
            _settled(task, [row for row in stretch.rows if row.value is not None], stretch)
            for task, stretch in found.items()
        ]
        return [each for each in records if each]

    # Records that the leader publishes

    async def publish(self, records: Sequence[tuple[LeaderOutput, OutputRecord]]) -> None:
        """Makes all of these visible, or none. A value b"" deletes a key of `weights`.

        Raises Fenced, SourceUnusable, and SourceUnavailable if the outcome is unknown.
        """
        said = [self._said(*each) for each in records]
        await self._unless_stopped(self._publisher.publish(said))

    def _said(self, output: LeaderOutput, record: OutputRecord) -> Said:
        value = record.value or None if output == "weights" else record.value
        return self._topics[output], record.key, value, record.headers


def _record(row: Any) -> OutputRecord:
    return OutputRecord(row.key, row.value or b"", tuple(row.headers))


def _settled(task: int, rows: list[Any], stretch: Stretch) -> SettledRecords:
    return SettledRecords(
        task=task,
        offsets=[row.offset for row in rows],
        values=[row.value for row in rows],
        fingerprints=_headers(rows, FINGERPRINT_HEADER),
        generations=_headers(rows, GENERATION_HEADER),
        next_offset=stretch.next_offset,
    )


def _headers(rows: Sequence[Any], name: str) -> list[bytes]:
    return [dict(row.headers).get(name, b"") for row in rows]

"""Foreign topics as a member of the mapping group, and the canonical topics that it writes."""

from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition

from evaluator.adapters.kafka.clients import complete, existing_counts, unequal_counts
from evaluator.adapters.kafka.connection import Connection
from evaluator.adapters.kafka.membership import GroupSettings
from evaluator.adapters.kafka.partitioners import of_murmur2
from evaluator.adapters.kafka.sink import KafkaSink
from evaluator.adapters.kafka.source import KafkaSource
from evaluator.core.types.records import Log
from evaluator.ports import Lane, Partition, Prepare, Progress, SourceUnusable


class KafkaForeignSource(KafkaSource):
    """Implements the source of `evaluator.mapping.mapper`.

    Args:
        connection: the brokers.
        group: the mapping group.
        topics: the foreign topics, of any partition counts.
        written: the canonical topics.
        prepare: see `KafkaSource`.
    """

    def __init__(
        self,
        connection: Connection,
        group: GroupSettings,
        topics: Mapping[Log, str],
        written: Mapping[Log, str],
        prepare: Prepare | None = None,
    ) -> None:
        super().__init__(connection, group, topics, prepare)
        self._written = written

    async def _equal_partitions(self) -> int:
        advice = "the programs that fill them, or check the topics of the mapping"
        await existing_counts(self._connection, list(self._topics.values()), advice=advice)
        return 0

    @property
    def partitions(self) -> frozenset[Partition]:
        return frozenset((self._logs[topic], number) for topic, number in self._member.assigned)

    async def progress(self) -> Mapping[Partition, Progress]:
        """The ends of all partitions, and the commits of the group shortly after."""
        consumer = await self._live()
        every = self._named(
            [
                (log, number)
                for log, topic in self._topics.items()
                for number in consumer.partitions_for_topic(topic) or ()
            ]
        )
        ends = await self.offsets(AIOKafkaConsumer.end_offsets, list(every))
        asking = self._requests(consumer)
        committed = asking.committed(self._group.group_id, list(every))
        commits = await complete(self._connection, "reading the offsets of the group", committed)
        return {it: Progress(commits.get(each), int(ends[each])) for each, it in every.items()}

    async def has_written(self) -> bool:
        counts = await existing_counts(self._connection, list(self._written.values()))
        every = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
        return any((await self.offsets(AIOKafkaConsumer.end_offsets, every)).values())


class KafkaCanonicalSink(KafkaSink):
    """Implements the sink of `evaluator.mapping.mapper`: keys are placed by murmur2."""

    def __init__(
        self, connection: Connection, topics: Mapping[Log, str], *, topic_prefix: str = ""
    ) -> None:
        super().__init__(connection, topic_prefix=topic_prefix)
        self._canonical = topics
        self._topics = {"dead-letters": self._topics["dead-letters"]}
        self._topics.update(topics.items())
        self._counts: dict[str, int] = {}

    async def _check_topics(self) -> None:
        found = await existing_counts(self._connection, list(self._topics.values()))
        counts = {log: found[topic] for log, topic in self._canonical.items()}
        if len(set(counts.values())) > 1:
            raise SourceUnusable(unequal_counts(self._canonical, found))
        for topic in self._canonical.values():
            if self._counts.setdefault(topic, found[topic]) != found[topic]:
                raise SourceUnusable(
                    f"Topic {topic} had {self._counts[topic]} partitions at the start and has "
                    f"{found[topic]} now, so keys would move to other partitions. Name topics "
                    "that keep their count with --to, and start again."
                )
        self._counts.update(found)

    def lane(self, output: Log, key: bytes) -> Lane:
        return output, of_murmur2(key, self._counts[self._canonical[output]])

    def letter_lane(self, partition: int) -> Lane:
        return "dead-letters", partition % self._counts[self._topics["dead-letters"]]

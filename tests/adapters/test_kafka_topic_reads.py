"""Single records read by their offsets; some are damaged on the broker."""

from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from evaluator.adapters.kafka import topic_reads
from evaluator.adapters.kafka.errors import BatchDamaged
from evaluator.adapters.kafka.topic_reader import Fetched, TopicReader
from evaluator.ports import SourceUnusable

DAMAGED = {(0, 5), (0, 6)}


class Reader(TopicReader):
    """Reads the first of the requested partitions; damaged records raise an error."""

    refusal = None

    def __init__(self, connection, topic):
        super().__init__(connection, topic)
        self.topic, self.at = topic, {}

    def seek(self, partition, offset):
        self.at[partition] = offset

    async def answers(self, partitions, **how):
        if self.refusal is not None:
            raise self.refusal
        number = min(partitions)
        offset = self.at[number]
        if (number, offset) in DAMAGED:
            raise BatchDamaged(TopicPartition(self.topic, number), offset, None, ValueError())
        row = SimpleNamespace(
            topic=self.topic,
            offset=offset,
            key=b"k",
            value=b"v",
            timestamp=1,
            serialized_value_size=1,
        )
        return {number: Fetched([row], offset + 1)}


async def read(places):
    return await topic_reads.read_records_at(None, {"rankings": "of-nobody"}, places)


async def test_damaged_records_are_none_and_the_others_are_read(monkeypatch):
    monkeypatch.setattr(topic_reads, "TopicReader", Reader)
    places = [(("rankings", number), offset) for number in (0, 1) for offset in (4, 5, 6, 7)]
    found = await read(places)
    assert {(number, at): each and each.offsets for ((_, number), at), each in found.items()} == {
        (number, at): None if (number, at) in DAMAGED else [at] for (_, number), at in places
    }


async def test_a_missing_right_is_not_reported_as_damage(monkeypatch):
    monkeypatch.setattr(topic_reads, "TopicReader", Reader)
    monkeypatch.setattr(Reader, "refusal", SourceUnusable("No right"))
    with pytest.raises(SourceUnusable, match="No right"):
        await read([(("rankings", 0), 1)])

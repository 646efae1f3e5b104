"""Partition counts of a broker that do not match."""

import contextlib
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from evaluator.adapters.kafka import Connection, GroupSettings, KafkaLeadership, clients
from evaluator.adapters.kafka.clients import equal_partitions, input_topics
from evaluator.adapters.kafka.errors import skip
from evaluator.ports import SourceUnusable

LOCAL = Connection("127.0.0.1:9")
TOPICS = input_topics("counts-")


@pytest.fixture
def counted(monkeypatch):
    """Simulates brokers with topics of these partition counts; other names are refused."""

    def answer(counts):
        async def partition_counts(names):
            if hidden := [name for name in names if name not in counts]:
                raise SourceUnusable(f"No right to see topic {hidden[0]}.")
            return {name: counts[name] for name in names}

        @contextlib.asynccontextmanager
        async def requests(_):
            yield SimpleNamespace(partition_counts=partition_counts)

        monkeypatch.setattr(clients, "requests", requests)

    return answer


async def test_an_offset_to_skip_must_be_of_an_existing_partition(counted):
    counted({"counts-rankings": 4, "counts-judgments": 4})
    named = TopicPartition("counts-rankings", 9)
    try:
        skip(named, [(5, 5)])
        with pytest.raises(SourceUnusable, match=r"partition 9 of counts-rankings.* 4 partitions"):
            await equal_partitions(LOCAL, TOPICS)
    finally:
        skip(named, [])
    assert await equal_partitions(LOCAL, TOPICS) == 4


ONE_PARTITION = ("weights", "weights-log", "alarms", "alarm-commands")
LEADER = {"counts-rankings": 3, "counts-settled": 2} | dict.fromkeys(
    (f"counts-{name}" for name in ONE_PARTITION), 1
)


@pytest.mark.parametrize(
    ("judgments", "why"),
    [
        ({"counts-judgments": 2}, "rankings has 3 partitions and topic counts-judgments has 2"),
        ({"counts-judgments": 3}, "settled has 2 partitions, the inputs have 3"),
        ({"counts-judgments": None}, "settled has 2 partitions, the inputs have 3"),
        ({}, "settled has 2 partitions, the inputs have 3"),
    ],
    ids=["unequal", "equal", "missing", "not visible"],
)
async def test_a_leader_names_unequal_inputs_before_an_output_with_fewer_partitions(
    counted, judgments, why
):
    counted(LEADER | judgments)
    leading = KafkaLeadership(LOCAL, GroupSettings("g", "counts-"))
    with pytest.raises(SourceUnusable, match=why):
        await leading._check_topics()

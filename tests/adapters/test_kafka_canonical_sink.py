"""The partitions to which the sink of a mapping writes, without a broker."""

import asyncio
from collections import deque

import pytest

from evaluator.adapters.kafka import Connection
from evaluator.adapters.kafka.mapping import KafkaCanonicalSink
from evaluator.adapters.kafka.sink import Emission, KafkaSink, OutputBatch
from evaluator.wire.records import OutputRecord

LOCAL = Connection("127.0.0.1:9")


def narrow():
    """A sink whose topic of dead letters has fewer partitions than the written topics."""
    sink = KafkaCanonicalSink(LOCAL, {"rankings": "r", "judgments": "j"})
    sink._counts = {"r": 4, "j": 4, "dead-letters": 2}
    return sink


@pytest.mark.parametrize(
    ("sink", "output", "expected"),
    [(narrow, "rankings", 1), (lambda: KafkaSink(LOCAL), "evaluations", 3)],
    ids=["mapping", "worker"],
)
async def test_a_refused_record_has_its_dead_letter_in_a_partition_that_exists(
    sink, output, expected
):
    made, enqueued = sink(), []
    made._enqueue = lambda lane, batch: enqueued.append((lane, len(batch.records)))
    emission = Emission(asyncio.get_running_loop().create_future(), 1)
    record = OutputRecord(b"k", b'{"trace_id":"t"}' * 10)
    made._shrink((output, 3), deque([OutputBatch([record], len(record.value), emission)]))
    assert enqueued == [(("dead-letters", expected), 1)]

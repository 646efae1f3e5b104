"""The lanes of sinks without a broker: their partitions, and the pauses of one that fails."""

import asyncio
from collections import deque
from itertools import pairwise

import pytest

from evaluator.adapters.kafka import Connection
from evaluator.adapters.kafka.mapping import KafkaCanonicalSink
from evaluator.adapters.kafka.sink import Emission, KafkaSink, OutputBatch
from evaluator.ports import SourceUnavailable
from evaluator.wire.records import OutputRecord
from tests.simulation.clock import simulated_time

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


def test_the_pauses_of_a_lane_double_until_a_batch_is_acknowledged():
    async def outages():
        sink, times = KafkaSink(LOCAL), []
        for n_attempts in (5, 3):
            failures = iter([SourceUnavailable("gone")] * (n_attempts - 1))

            async def send(lane, batch, failures=failures):
                times.append(asyncio.get_running_loop().time())
                for failure in failures:
                    raise failure

            sink._send = send
            emission = Emission(asyncio.get_running_loop().create_future(), 1)
            await sink._deliver(("settled", 0), deque([OutputBatch([], 0, emission)]))
        return [after - before for before, after in pairwise(times)]

    with simulated_time(int) as time:
        waited = time.run_until_complete(outages())
    assert waited == pytest.approx([0.25, 0.5, 1.0, 2.0, 0.0, 0.25, 0.5], abs=0.01)

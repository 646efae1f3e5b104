"""Calls of the leader that are cancelled at the moment of their completion."""

import asyncio
from types import SimpleNamespace

import pytest

from evaluator.adapters.kafka.leadership import KafkaLeadership
from evaluator.adapters.kafka.topic_reader import Fetched

ROW = {"value": b"v", "headers": (), "timestamp": 0, "serialized_value_size": 1}


class Reader:
    """Ten records of one partition, all with the first read."""

    def __init__(self):
        self.positions = {0: 0}

    def seek(self, partition, offset):
        self.positions[partition] = offset

    async def more(self, partitions, **how):
        at, self.positions[0] = self.positions[0], 10
        rows = [SimpleNamespace(**ROW, offset=n, key=b"k%d" % n) for n in range(at, 10)]
        return {0: Fetched(rows, 10)} if rows else {}

    async def rest(self, partitions):
        for row in (await self.more(partitions))[0].rows:
            yield row


class Leadership(KafkaLeadership):
    """Is elected, without a broker."""

    elected = True

    def __init__(self):
        self._stopped, self._running, self._unread = False, set(), {}
        self._settled, self._weights = Reader(), Reader()
        self._settled.forget = lambda: None
        self._election = SimpleNamespace(changed=asyncio.Event())
        self._publisher = SimpleNamespace(begin=self._live)

    async def _live(self):
        pass


CALLS = {
    "read": lambda of: of.read([0], max_records=10, timeout_ms=100),
    "follow": lambda of: of.follow(timeout_ms=100),
    "begin_epoch": lambda of: of.begin_epoch(),
}


async def returned_ids(call, leadership):
    """The offsets or keys that one call returns."""
    found = await CALLS[call](leadership)
    return (
        [each for batch in found for each in batch.offsets]
        if call == "read"
        else [each.key for each in found]
    )


@pytest.mark.parametrize("call", CALLS)
async def test_records_of_a_cancelled_call_are_returned_by_it_or_the_next_call(call):
    whole = await returned_ids(call, Leadership())
    assert len(whole) == 10
    n_cancelled_at_the_end = 0
    for n_steps in range(10):
        leadership = Leadership()
        running = asyncio.ensure_future(returned_ids(call, leadership))
        for _ in range(n_steps):
            await asyncio.sleep(0)
        has_read = 10 in (leadership._settled.positions[0], leadership._weights.positions[0])
        running.cancel()
        (found,) = await asyncio.gather(running, return_exceptions=True)
        if running.cancelled():
            n_cancelled_at_the_end += has_read
            follow = "follow" if call == "begin_epoch" else call
            found = await returned_ids(follow, leadership)
        assert found == whole
    assert n_cancelled_at_the_end > 0

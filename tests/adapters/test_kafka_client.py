"""The end of a client: whatever its tasks do meanwhile, no connection stays open."""

import asyncio

from aiokafka import AIOKafkaProducer

from evaluator.adapters.kafka.clients import close


class Opened:
    """A connection of a client."""

    closed = False

    def close(self, **_) -> "asyncio.Future[None]":
        self.closed = True
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


async def test_a_connection_that_a_task_opens_while_its_client_is_closed_is_closed_too():
    producer, opened = AIOKafkaProducer(), Opened()

    async def send_without_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            producer.client._conns["late"] = opened

    producer.stop = asyncio.Event().wait  # as without brokers
    producer._sender._sender_task = asyncio.ensure_future(send_without_end())
    await asyncio.sleep(0)
    await close(producer, timeout_seconds=0.01)
    assert producer._sender.sender_task.done()
    producer._closed = True  # `stop` was replaced
    assert opened.closed

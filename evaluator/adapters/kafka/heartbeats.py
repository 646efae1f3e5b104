"""Records without key and value, appended to the inputs so that quiet partitions move on."""

from aiokafka import AIOKafkaProducer

from evaluator.adapters.kafka.clients import closed, patient
from evaluator.adapters.kafka.connection import (
    ANSWER_TIMEOUT_MS,
    Connection,
    probe,
)


class Heartbeats:
    """A producer for heartbeats, made when the first one is due."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer: AIOKafkaProducer | None = None

    async def append(self, topic: str, partition: int, timestamp_ms: int) -> None:
        """Appends one and waits until it is there. Raises the library's errors."""
        if self._producer is None:
            await probe(self._connection)
            self._producer = AIOKafkaProducer(
                **self._connection.arguments(),
                enable_idempotence=True,
                acks="all",
                request_timeout_ms=ANSWER_TIMEOUT_MS,
            )
            await patient(self._producer).start()
        # `send` of the library refuses a record without key and value; a batch may hold one.
        batch = self._producer.create_batch()
        batch.append(key=None, value=None, timestamp=timestamp_ms)
        await (await self._producer.send_batch(batch, topic, partition=partition))

    async def close(self) -> None:
        """Closes; the next `append` starts anew."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await closed(producer)

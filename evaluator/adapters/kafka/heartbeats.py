"""Records without key and value, appended to the inputs so that quiet partitions move on."""

from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka.clients import closed, patient
from evaluator.adapters.kafka.connection import (
    ANSWER_TIMEOUT_MS,
    Connection,
    probe,
)

LOG_APPEND_TIME: Final = 1
"""Number of the protocol for timestamps that the broker has made."""


class Heartbeats:
    """A producer for heartbeats, made when the first one is due."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer: AIOKafkaProducer | None = None

    async def append(
        self, topic: str, partition: int, timestamp_ms: int, *, key: bytes | None = None
    ) -> int | None:
        """Appends one and waits until it is there: when, by the broker, if it stamps the topic.

        Raises the library's errors.
        """
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
        batch.append(key=key, value=None, timestamp=timestamp_ms)
        try:
            sent = await (await self._producer.send_batch(batch, topic, partition=partition))
        except kafka_errors.InvalidTimestampError:
            await self.close()  # its sequence numbers are of no use after a batch was refused
            raise
        return int(sent.timestamp) if sent.timestamp_type == LOG_APPEND_TIME else None

    async def close(self) -> None:
        """Closes; the next `append` starts a new one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await closed(producer)

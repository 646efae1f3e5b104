"""Whether a consumer still hears from the brokers, and what to do when it does not."""

import time

from aiokafka import AIOKafkaConsumer, TopicPartition

from evaluator.adapters.kafka.connection import Connection, probe

SILENCE_MS = 2_000
"""After so long without an answer the broker is asked whether it is there at all."""


class LivenessProbe:
    """Takes note of the answers to fetches, for one consumer after the other."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._at = 0.0
        self._secrets: object = None
        self._answers: dict[TopicPartition, int] = {}

    def begin(self) -> None:
        """A consumer was made just now, with the secrets as they are."""
        self._secrets = self._connection.secrets()
        self._at = time.monotonic()

    def end_of(self, consumer: AIOKafkaConsumer, partition: TopicPartition) -> int | None:
        """The end of *partition* if the broker has answered about it since the last time."""
        answered_ms = consumer.last_poll_timestamp(partition)
        if answered_ms is None or self._answers.get(partition) == answered_ms:
            return None
        self._answers[partition] = answered_ms
        self._at = time.monotonic()
        end: int | None = consumer.last_stable_offset(partition)
        return end if end is not None and end >= 0 else None

    async def check(self) -> bool:
        """Asks the broker after a silence; False if it answers, but to other secrets only.

        A consumer connects again with the secrets that it was made with, for ever. Raises
        SourceUnavailable, SourceUnusable.
        """
        if time.monotonic() - self._at <= SILENCE_MS / 1000:
            return True
        await probe(self._connection)
        self._at = time.monotonic()
        return self._connection.secrets() == self._secrets

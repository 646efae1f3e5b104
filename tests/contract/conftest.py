import pytest

from tests.contract.backends import PARAMS, KafkaBackend, MemoryBackend
from tests.kafka.fixtures import (
    _mortal,
    kafka_bootstrap,
    own_broker,
    pytest_runtest_makereport,
    pytest_runtest_teardown,
    topic_prefix,
)

__all__ = [
    "_mortal",
    "kafka_bootstrap",
    "own_broker",
    "pytest_runtest_makereport",
    "pytest_runtest_teardown",
    "topic_prefix",
]


@pytest.fixture(params=PARAMS)
async def make_backend(request, topic_prefix):
    """Makes a medium with these partition counts of the inputs, and closes it at the end.

    The *room* of some outputs may be limited to records of so many bytes.
    """
    made = []

    async def make(rankings=1, judgments=1, room=None):
        counts = {"rankings": rankings, "judgments": judgments}
        prefix = f"{topic_prefix}{len(made)}-"
        if request.param == "memory":
            backend = MemoryBackend(counts, prefix, room)
        else:
            from evaluator.adapters.kafka import Connection

            connection = Connection(request.getfixturevalue("kafka_bootstrap"))
            backend = await KafkaBackend.open(connection, prefix, counts, room=room)
        made.append(backend)
        return backend

    yield make
    for backend in made:
        await backend.close()


@pytest.fixture
async def backend(make_backend):
    """A medium with one task."""
    return await make_backend()


@pytest.fixture
async def two_tasks(make_backend):
    """A medium with two tasks."""
    return await make_backend(2, 2)


@pytest.fixture(params=PARAMS)
async def interruptible(request, topic_prefix):
    """A medium with one task that can become unavailable."""
    counts = {"rankings": 1, "judgments": 1}
    if request.param == "memory":
        backend = MemoryBackend(counts, topic_prefix)
    else:
        from evaluator.adapters.kafka import Connection

        broker = request.getfixturevalue("own_broker")
        connection = Connection(broker.bootstrap)
        backend = await KafkaBackend.open(connection, topic_prefix, counts, broker)
    yield backend
    await backend.close()

import pytest

from tests.contract.backends import KafkaBackend
from tests.kafka.fixtures import (
    _mortal,
    _secured,
    authority,
    kafka,
    kafka_bootstrap,
    own_broker,
    pytest_runtest_makereport,
    pytest_runtest_teardown,
    secured,
    topic_prefix,
)
from tests.kafka.process import Worker, arguments_of
from tests.kafka.world import World

__all__ = [
    "_mortal",
    "_secured",
    "authority",
    "kafka",
    "kafka_bootstrap",
    "own_broker",
    "pytest_runtest_makereport",
    "pytest_runtest_teardown",
    "secured",
    "topic_prefix",
]


@pytest.fixture
async def backend(kafka, topic_prefix):
    """Topics of one task, for a source and a sink without a worker."""
    backend = await KafkaBackend.open(kafka, topic_prefix, {"rankings": 1, "judgments": 1})
    yield backend
    await backend.close()


@pytest.fixture(autouse=True)
def _own_state_and_port(monkeypatch, tmp_path):
    """A command in this process has its own state directory and port."""
    monkeypatch.setenv("EVALUATOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EVALUATOR_HTTP_PORT", "0")


@pytest.fixture
def make_world(kafka, topic_prefix):
    """Creates topics with a given partition count."""

    def make(n_tasks, *, prefix_end="", **arguments):
        return World(kafka, topic_prefix + prefix_end, n_tasks=n_tasks, **arguments)

    return make


@pytest.fixture
def world(make_world):
    """All topics, with two tasks."""
    return make_world(2)


@pytest.fixture
def start(tmp_path):
    """Starts workers on a world; all of them end with the test."""
    started = []

    def start(world, *flags, **settings):
        settings = {**arguments_of(world.settings), **settings}
        started.append(Worker(tmp_path, world.bootstrap, world.prefix, *flags, **settings))
        return started[-1]

    yield start
    for worker in started:
        worker.end()

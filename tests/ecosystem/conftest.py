import pytest

from tests.ecosystem.apicurio import Apicurio
from tests.kafka.fixtures import kafka, kafka_bootstrap, topic_prefix

__all__ = ["kafka", "kafka_bootstrap", "topic_prefix"]


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """A running Apicurio."""
    with Apicurio(tmp_path_factory.mktemp("apicurio")) as running:
        yield running

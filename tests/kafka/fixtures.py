"""Fixtures around a real broker; a conftest.py imports them by name."""

import itertools
import json
import os
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from evaluator.adapters.kafka import Connection
from tests.kafka.authority import Authority
from tests.kafka.broker import Broker, locked, tail_of
from tests.spread import uses
from tests.waiting import until

_numbers = itertools.count(1)


NEVER_FENCED = {"broker.session.timeout.ms": "600000"}
"""A broker that pauses for a second is not fenced, which would make it load all groups again. After
a kill its controller would refuse it for this time."""


class SharedBroker:
    """One broker for all processes of a test run: the first starts it, the last stops it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._state = directory / "state.json"
        self._broker: Broker | None = None

    def acquire(self) -> str:
        """Registers this process; returns HOST:PORT."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with locked(self._directory / "lock"):
            state = json.loads(self._state.read_text()) if self._state.exists() else {"users": 0}
            if state["users"] == 0:
                home = Path(tempfile.mkdtemp(prefix="broker-", dir=self._directory))
                self._broker = Broker(home, properties=NEVER_FENCED).start()
                state = {"users": 0, "bootstrap": self._broker.bootstrap}
            state["users"] += 1
            self._state.write_text(json.dumps(state))
            return str(state["bootstrap"])

    def release(self) -> None:
        """Unregisters this process; the one that started the broker waits for the others and
        stops it."""
        with locked(self._directory / "lock"):
            state = json.loads(self._state.read_text())
            state["users"] -= 1
            self._state.write_text(json.dumps(state))
        if self._broker is not None:
            until(
                self._is_unused, seconds=3_600.0, details=lambda: "other test processes still run"
            )
            self._broker.stop()

    def _is_unused(self) -> bool:
        with locked(self._directory / "lock"):
            return bool(json.loads(self._state.read_text())["users"] == 0)


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a running broker, shared by all tests and by the workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    _SHARED.append(base / "kafka")
    shared = SharedBroker(base / "kafka")
    yield shared.acquire()
    shared.release()


@pytest.fixture
def kafka(kafka_bootstrap: str) -> Connection:
    """A connection to the shared broker."""
    return Connection(kafka_bootstrap)


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for topic names and groups that no other test has."""
    return f"t{next(_numbers)}-{uuid.uuid4().hex[:8]}-"


_BROKERS: list[tuple[str, Broker]] = []
"""Brokers of this process alone, with the names of their fixtures."""
_SHARED: list[Path] = []
"""Folder of the broker that all processes share, once this process uses it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the last warnings and errors of each broker of this process to a failed test."""
    report = yield
    if report.failed:
        logs = [broker.log for _, broker in _BROKERS]
        logs += [log for folder in _SHARED for log in folder.glob("broker-*/broker.log")]
        report.sections += [(f"End of {log}", tail_of(log)) for log in logs]
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stops a broker that the next file does not need: idle, it takes 4 % of a core."""
    if nextitem is None or nextitem.path != item.path:
        its = [each for each in item.session.items if nextitem and each.path == nextitem.path]
        for name, broker in _BROKERS:
            if not any(uses(each, name) for each in its):
                broker.stop()


@pytest.fixture(scope="session")
def _mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this process that is not always running."""
    with Broker(tmp_path_factory.mktemp("own-broker")) as broker:
        _BROKERS.append(("_mortal", broker))
        yield broker


@pytest.fixture
def own_broker(_mortal: Broker) -> Broker:
    """A running broker that the test may stop, kill and start again; later ones get it as well."""
    return _mortal if _mortal.running else _mortal.start()


PASSWORDS = {"alice": "s3cret", "evaluator": "s3cret-too", "owner": "hush-hush"}
"""Users of the secured broker. All but the owner have no rights at first."""


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that signs the certificates of the secured broker, and that it trusts."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def _secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    """A broker that requires logins, certificates and rights, and creates requested topics."""
    properties = {
        "super.users": "User:ANONYMOUS;User:owner",
        "auto.create.topics.enable": "true",  # as brokers do by default
    }
    home = tmp_path_factory.mktemp("secured")
    with Broker(home, users=PASSWORDS, authority=authority, properties=properties) as broker:
        _BROKERS.append(("_secured", broker))
        yield broker


@pytest.fixture(scope="module")
def secured(_secured: Broker) -> Broker:
    """The secured broker, running."""
    return _secured if _secured.running else _secured.start()

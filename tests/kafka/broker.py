"""A real Apache Kafka on this machine: one KRaft node, started and stopped by tests and benchmarks.

>>> with Broker(directory) as broker:                      # doctest: +SKIP
...     KafkaSource(Connection(broker.bootstrap), ...)
"""

import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from tests.kafka.authority import Authority

KAFKA_VERSION = "4.1.1"
HERE = Path(__file__).parent
START_SECONDS = 600.0
STOP_SECONDS = 20.0
LOAD_SECONDS = 60.0
MOST_STARTS = 3
LOADING, NOT_COORDINATOR = 14, 16  # error codes of Kafka
PR_SET_PDEATHSIG = 1  # of prctl(2)
_LIBC = ctypes.CDLL(None)


class BrokerError(Exception):
    """The broker cannot be used; the message is one line with the remedy."""


def cache_directory() -> Path:
    """The folder of the jars between runs; never inside the work tree."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "streaming-evaluator" / f"kafka-{KAFKA_VERSION}"


def require_programs() -> None:
    """Raises BrokerError unless java and mvn can be found."""
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if missing:
        raise BrokerError(
            f"{' and '.join(missing)} not found; the tests on a real Kafka need them. On Debian: "
            "apt-get install openjdk-17-jre-headless maven"
        )


def jars() -> Path:
    """The directory with the broker's jars, resolved by Maven on first use."""
    return resolved(HERE / "pom.xml", cache_directory())


def resolved(pom: Path, directory: Path, *options: str) -> Path:
    """A directory with the jars of a *pom*, resolved by Maven on first use.

    Made aside and renamed, under a lock, so that several processes may call this at once.
    """
    if directory.is_dir():
        return directory
    require_programs()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.parent / "lock"):
        if not directory.is_dir():
            _resolve(pom, directory, options)
    return directory


def _resolve(pom: Path, directory: Path, options: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix="resolving-") as scratch:
        libs = Path(scratch) / "libs"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options]
        command += [f"-DoutputDirectory={libs}", "-DincludeScope=runtime"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            tail = " ".join((done.stdout + done.stderr).split()[:60])
            raise BrokerError(f"Maven could not resolve the jars of {pom}: {tail}")
        libs.rename(directory)


def classes() -> Path | None:
    """The archive of the classes that a broker loads, with which it starts in half the time.

    Made on first use, by a broker that starts and stops; None if that took too long.
    """
    java = Path(shutil.which("java") or "").resolve()
    version = zlib.crc32(f"{java} {java.stat().st_mtime_ns}".encode())
    archive = jars().with_name(f"{jars().name}-{version:08x}.jsa")
    if not archive.exists():
        with locked(archive.parent / "lock"):
            if not archive.exists():
                _archive(archive)
    return archive if archive.exists() else None


def _archive(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="archiving-") as scratch:
        made = Path(scratch) / archive.name
        Broker(Path(scratch) / "broker", java=[f"-XX:ArchiveClassesAtExit={made}"]).start().stop()
        if made.exists():
            made.rename(archive)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock between processes on *path*."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def free_ports(count: int) -> list[int]:
    """Random free ports that no other test takes while this process lives.

    Below the range of outgoing connections, so that none of those takes the port of a broker that
    is stopped for a while. A lock on a file reserves each for this process, until a program that it
    starts binds it.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(15_000, 32_000)
        if _is_ours(port) and _is_free(port):
            ports.append(port)
    return ports


def _is_ours(port: int) -> bool:
    folder = Path(tempfile.gettempdir()) / f"streaming-evaluator-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT)  # open until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Broker:
    """One broker process with its own directory and ports; both survive `stop` and `kill`.

    Args:
        directory: holds the configuration, the data and the log; made if missing.
        cpu: pin the process to this core (benchmarks).
        heap_mb: Java heap.
        users: names and passwords for a second listener (`sasl_bootstrap`, SASL_PLAINTEXT with
            PLAIN); they have no rights, while a client without a name has all.
        authority: creates the certificates of three more listeners: `scram_bootstrap` (SASL_SSL
            with SCRAM-SHA-512, for the same users), `tls_bootstrap` (SSL, requires a certificate of
            a client; its principal is the common name) and `elsewhere_bootstrap` (SSL, with a
            certificate for another host, and for localhost, which is not what it advertises).
        properties: further lines for the broker's configuration.
        java: options of Java in place of the archive of classes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        cpu: int | None = None,
        heap_mb: int = 512,
        users: dict[str, str] | None = None,
        authority: Authority | None = None,
        properties: dict[str, str] | None = None,
        java: list[str] | None = None,
    ) -> None:
        self.directory = directory
        self.port, self.controller_port, self.sasl_port, *self._tls_ports = free_ports(6)
        self._users = dict(users or {})
        self._authority = authority
        self._cpu = cpu
        self._heap_mb = heap_mb
        self._properties = dict(properties or {})
        self._options = java
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_bootstrap(self) -> str:
        """HOST:PORT that requires a login."""
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def scram_bootstrap(self) -> str:
        """HOST:PORT that requires a login over TLS."""
        return f"127.0.0.1:{self._tls_ports[0]}"

    @property
    def tls_bootstrap(self) -> str:
        """HOST:PORT that requires a client certificate."""
        return f"127.0.0.1:{self._tls_ports[1]}"

    @property
    def elsewhere_bootstrap(self) -> str:
        """HOST:PORT whose certificate is for another host."""
        return f"127.0.0.1:{self._tls_ports[2]}"

    @property
    def log(self) -> Path:
        """The output of the broker, over all its starts."""
        return self.directory / "broker.log"

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> "Broker":
        """Starts the broker, on the same ports and data as before, and waits until it answers."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """The first half of `start`. The broker ends with the thread that calls this."""
        require_programs()
        libs = jars()
        if not (self.directory / "data").exists():
            self._format(libs)
        command = [*self._taskset(), *self._java(libs), f"-Xmx{self._heap_mb}m", "kafka.Kafka"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self._configuration)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - one call of the system, no locks
            )

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if the broker takes too long; both by process id."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: the broker does not shut down cleanly."""
        self._end(signal.SIGKILL)

    @property
    def _configuration(self) -> Path:
        return self.directory / "server.properties"

    def _taskset(self) -> list[str]:
        return [] if self._cpu is None else ["taskset", "-c", str(self._cpu)]

    def _java(self, libs: Path) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
        fast_start = ["-XX:TieredStopAtLevel=1"] if self._cpu is None else []
        if self._options is not None:
            fast_start += self._options
        elif self._cpu is None and (archive := classes()) is not None:
            fast_start.append(f"-XX:SharedArchiveFile={archive}")
        return ["java", *fast_start, "-Xshare:auto", logging, "-cp", f"{libs}/*"]

    def _format(self, libs: Path) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._configuration.write_text(self._server_properties())
        command = [*self._java(libs), "kafka.tools.StorageTool", "format"]
        command += ["-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(self._configuration)]
        if self._authority is not None:
            for name, word in self._users.items():
                command += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={word}]"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerError(f"cannot format the broker's storage: {done.stdout}{done.stderr}")

    def _server_properties(self) -> str:
        controller = f"127.0.0.1:{self.controller_port}"
        values = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.directory / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "log.message.timestamp.after.max.ms": str(2**63 - 1),
            "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
            "log.retention.ms": "-1",  # tests write records of any age
            "broker.session.timeout.ms": "3000",  # after a kill it does not start earlier
            "broker.heartbeat.interval.ms": "500",
            "metadata.max.idle.interval.ms": "0",  # writes nothing while it is idle
            **self._login_properties(),
            **self._properties,
        }
        return "".join(f"{name}={value}\n" for name, value in values.items())

    def _login_properties(self) -> dict[str, str]:
        if not self._users:
            return {}
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        users = "".join(f' user_{name}="{word}"' for name, word in self._users.items())
        listeners = {
            "PLAINTEXT": ("PLAINTEXT", self.bootstrap),
            "SASL": ("SASL_PLAINTEXT", self.sasl_bootstrap),
        }
        if self._authority is not None:
            listeners["SCRAM"] = ("SASL_SSL", self.scram_bootstrap)
            listeners["TLS"] = ("SSL", self.tls_bootstrap)
            listeners["ELSEWHERE"] = ("SSL", self.elsewhere_bootstrap)
        open_to_clients = ",".join(f"{name}://{at}" for name, (_, at) in listeners.items())
        protocols = ",".join(f"{name}:{protocol}" for name, (protocol, _) in listeners.items())
        return {
            "listeners": f"{open_to_clients},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": open_to_clients,
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f"{module}{users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            **self._tls_properties(),
        }

    def _tls_properties(self) -> dict[str, str]:
        if self._authority is None:
            return {}
        here = self._authority.keystore("broker", "127.0.0.1")
        elsewhere = self._authority.keystore("elsewhere", "192.0.2.1", "localhost")
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(here),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority.cafile),
            "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
            "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scram.scram-sha-512.sasl.jaas.config": module,
            "listener.name.tls.ssl.client.auth": "required",
            "listener.name.elsewhere.ssl.keystore.type": "PEM",
            "listener.name.elsewhere.ssl.keystore.location": str(elsewhere),
        }

    def wait_until_ready(self) -> None:
        """The second half of `start`. Raises BrokerError when the broker ends or takes too long.

        A broker that was killed may give up loading its groups (docs/operations.md); then it is
        started again, as an operator would.
        """
        for _ in range(MOST_STARTS):
            self._wait_until_it_answers()
            if self._loads_groups():
                return
            self.kill()
            self.launch()
        self.kill()
        raise BrokerError(f"the broker does not load its groups: {self.log_tail()}")

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise BrokerError(f"the broker ended at once; its log: {self.log_tail()}")
            if _answers(self.port):
                return
            time.sleep(0.05)
        self.kill()
        raise BrokerError(f"the broker was not ready in {START_SECONDS} s: {self.log_tail()}")

    def _loads_groups(self) -> bool:
        """Whether the broker has loaded its earlier groups; waits while it loads them."""
        began = time.monotonic()
        while (self.directory / "data" / "__consumer_offsets-0").exists():
            code = _group_error(self.port)
            if code == NOT_COORDINATOR and time.monotonic() - began > LOAD_SECONDS:
                return False
            if code not in {None, LOADING, NOT_COORDINATOR} or not self.running:
                break
            time.sleep(0.05)
        return True

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of the broker's log."""
        return tail_of(self.log, lines)

    def _end(self, sign: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(sign)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def tail_of(log: Path, lines: int = 30) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _end_with_parent() -> None:
    """Lets the system end this process when the thread that started it ends in any way."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _answers(port: int) -> bool:
    """Whether the broker on *port* lists a broker, which is itself, and so has a controller."""
    response = _answer(port, b"\x00\x03\x00\x01", b"\x00\x00\x00\x00", 12)  # Metadata v1, no topics
    return response is not None and int.from_bytes(response[8:], "big") > 0  # brokers


def _group_error(port: int) -> int | None:
    """The error code for an unused group id; None without an answer."""
    groups = b"\x00\x00\x00\x01" + b"\x00\x06nobody"
    response = _answer(port, b"\x00\x0f\x00\x00", groups, 14)  # DescribeGroups v0
    return None if response is None else int.from_bytes(response[12:], "big")


def _answer(port: int, api: bytes, body: bytes, n_bytes: int) -> bytes | None:
    """The first bytes of an answer, with its size, the correlation id and a count."""
    request = api + b"\x00\x00\x00\x01" + b"\x00\x05ready" + body
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(len(request).to_bytes(4, "big") + request)
            response = connection.recv(n_bytes, socket.MSG_WAITALL)
            return response if len(response) == n_bytes else None
    except OSError:
        return None

"""TLS on a real broker: logins with SCRAM, client certificates, and their faults."""

import json
import re
import ssl

import pytest

from evaluator.adapters.kafka import Connection
from evaluator.cli import main
from evaluator.ports import SourceUnavailable
from evaluator.wire.records import OutputRecord
from tests.contract.backends import KafkaBackend, owned
from tests.kafka.authority import Authority
from tests.kafka.fixtures import PASSWORDS
from tests.kafka.process import Process, Worker, arguments_of
from tests.kafka.world import World
from tests.oracle.totals import comparable
from tests.waiting import STOP_SECONDS, patience
from tests.worker.traffic import traffic

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("brokers")]

PASSWORD = PASSWORDS["owner"]


@pytest.fixture
def scram(secured, authority, tmp_path):
    """Address and settings of a login with a password, whose file ends with a newline."""
    (tmp_path / "hush-file").write_text(PASSWORD + "\n")
    return secured.scram_bootstrap, {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "owner",
        "sasl_password_file": tmp_path / "hush-file",
        "ssl_cafile": authority.cafile,
    }


@pytest.fixture
def mutual(secured, authority):
    """Address and settings of a client with a certificate."""
    certfile, keyfile = authority.issue("owner")
    return secured.tls_bootstrap, {
        "security_protocol": "SSL",
        "ssl_cafile": authority.cafile,
        "ssl_certfile": certfile,
        "ssl_keyfile": keyfile,
    }


@pytest.fixture
def command(topic_prefix):
    """Exit code of a command on topics with a prefix of this test."""

    def command(access, *words, **more):
        bootstrap, settings = access
        settings = {"topic_prefix": topic_prefix, "group_id": f"{topic_prefix}group"} | settings
        flags = [f"--set={name}={value}" for name, value in (settings | more).items()]
        return main([*words, f"--source=kafka://{bootstrap}", *flags])

    return command


@pytest.mark.parametrize("way", ["scram", "mutual"])
def test_every_command_works_over_tls(way, request, secured, command, topic_prefix, tmp_path):
    access = request.getfixturevalue(way)
    create = ("topics", "create", "--partitions=2", "--no-timestamp-bound")  # arbitrary timestamps
    assert command(access, *create) == 0
    assert command(access, "check") == 0
    world = World(Connection(secured.bootstrap), topic_prefix, create=False)
    world.append({0: traffic(1, n_queries=60), 1: traffic(2, n_queries=60)})
    meaning = arguments_of(world.settings)
    assert command(access, "run", "--until-end", http_port=0, **meaning) == 0
    assert world.committed() == world.ends()
    truth = world.truth()
    truth.check_outputs(world.outputs())
    assert command(access, "replay", f"--out={tmp_path / 'out'}", **meaning) == 0
    totals = json.loads((tmp_path / "out" / "totals.json").read_text("utf-8"))
    assert comparable(totals) == truth.totals


def without(settings, *names):
    return {name: value for name, value in settings.items() if name not in names}


@pytest.fixture
def faults(secured, authority, scram, mutual, tmp_path):
    """Faults: address, settings, and the expected error."""
    (tmp_path / "wrong").write_text("wrong")
    stranger = Authority(tmp_path, "stranger")
    unknown, expired = stranger.issue("owner"), authority.issue("late", age_days=9)
    (login_at, login), (mutual_at, tls) = scram, mutual
    refused = "The broker ends the TLS handshake: .* Set ssl_certfile and ssl_keyfile to a client"

    def shown(pair):
        return mutual_at, tls | dict(zip(("ssl_certfile", "ssl_keyfile"), pair, strict=True))

    return {
        "wrong password": (
            (login_at, login | {"sasl_password_file": tmp_path / "wrong"}),
            "The broker refuses the login: .* the password in the file of sasl_password_file",
        ),
        "untrusted authority": (
            (login_at, login | {"ssl_cafile": stranger.cafile}),
            "self-signed certificate in certificate chain. Set ssl_cafile to the authority",
        ),
        "no authority": ((mutual_at, without(tls, "ssl_cafile")), "Set ssl_cafile to"),
        "another host": (
            (secured.elsewhere_bootstrap, tls),
            r"certificate is not valid for '127.0.0.1'. Connect to a name .*\(--source",
        ),
        "another host advertised": (
            (secured.elsewhere_bootstrap.replace("127.0.0.1", "localhost"), tls),
            r"127.0.0.1:\d+, which the broker advertises failed. .* is not valid for '127.0.0.1'",
        ),
        "no client certificate": (
            (mutual_at, without(tls, "ssl_certfile", "ssl_keyfile")),
            refused,
        ),
        "expired client certificate": (shown(expired), refused),
        "client certificate of an unknown authority": (shown(unknown), refused),
        "no TLS": ((login_at, login | {"security_protocol": "SASL_PLAINTEXT"}), "uses TLS. Set"),
    }


FAULTS = [
    *("wrong password", "untrusted authority", "no authority", "another host"),
    *(
        "another host advertised",
        "no client certificate",
        "expired client certificate",
        "client certificate of an unknown authority",
        "no TLS",
    ),
]


def test_the_parameters_cover_every_fault(faults):
    assert list(faults) == FAULTS


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_clear_line_and_exit_code_3(fault, faults, command, capsys, tmp_path):
    access, message = faults[fault]
    for words in (["topics", "plan", "--partitions=1"], ["replay", f"--out={tmp_path / 'out'}"]):
        assert command(access, *words) == 3
        (line,) = capsys.readouterr().err.splitlines()
        check_line(line, message)
    assert command(access, "check") == (5 if "advertised" in fault else 3)
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("error")]
    check_line(line, message)
    assert "->" in lines[lines.index(line) + 1]


def check_line(line, message):
    assert re.search(message, line), line
    for secret in (PASSWORD, "hush-file", "Traceback"):
        assert secret not in line


@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_ends_in_time_with_one_clear_line(fault, faults, tmp_path):
    (bootstrap, settings), message = faults[fault]
    flags = [f"--set={name}={value}" for name, value in settings.items()]
    source = f"--source=kafka://{bootstrap}"
    process = Process(tmp_path, "run", source, "--set=http_port=0", *flags)
    assert process.wait(STOP_SECONDS) == 3
    lines = [line for line in process.err.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, process.err
    check_line(lines[0], message)


def test_no_secret_is_visible_in_processes_logs_or_pages(
    scram, command, topic_prefix, tmp_path, capsys
):
    bootstrap, settings = scram
    assert command(scram, "topics", "create", "--partitions=1") == 0
    assert command(scram, "check") == 0
    checked = capsys.readouterr()
    worker = Worker(tmp_path, bootstrap, topic_prefix, log_level="debug", **settings)
    try:
        worker.until_ready()
        status = worker.document("/status")
        assert status["settings"]["sasl_username"] == "***"
        assert status["settings"]["sasl_password_file"] == "***"
        pages = [worker.get(path)[1].decode() for path in ("/status", "/metrics", "/totals", "/")]
        assert worker.stop() == 0
    finally:
        worker.end()
    for shown in (*pages, worker.err, worker.out, checked.out, checked.err):
        assert PASSWORD not in shown
        assert "hush-file" not in shown


async def poll_forever(source):
    while True:
        await source.poll([], max_records=1, timeout_ms=50)


async def test_clients_that_reconnect_use_the_new_secrets(
    secured, authority, mutual, topic_prefix, tmp_path
):
    """A consumer and a producer of the library would keep the files of their creation."""
    bootstrap, tls = mutual
    files = {name: tmp_path / name for name in ("ssl_certfile", "ssl_keyfile")}

    def hand_out(name):
        for file, path in zip(files.values(), authority.issue(name), strict=True):
            file.write_bytes(path.read_bytes())

    hand_out("owner")
    access = {name: str(value) for name, value in (tls | files).items()}
    backend = await KafkaBackend.open(
        Connection(bootstrap, **access), topic_prefix, {"rankings": 1, "judgments": 1}
    )
    source, sink = backend.source(session_timeout_ms=2_000), backend.sink()
    record = {("settled", 0): [OutputRecord(b"k", b"v")]}
    try:
        await source.start()
        await sink.start()
        generation = await owned(source, {0})
        await (await sink.emit(record))
        for client in (source._consumer._client, sink._producer.client.client):
            client._ssl_context = ssl.create_default_context()  # trusts the broker no more
            for connection in list(client._conns.values()):
                connection.close()
        hand_out("owner")
        sent = await sink.emit(record)
        async with patience():
            with pytest.raises(SourceUnavailable, match="in the files has changed"):
                await poll_forever(source)
            await owned(source, {0}, after_generation=generation)
            await sent
    finally:
        await sink.stop()
        await source.stop()
        await backend.close()

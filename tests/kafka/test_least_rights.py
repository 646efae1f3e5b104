"""The rights that `check` prints, granted as printed on a broker that requires them."""

import asyncio
import contextlib
import itertools
import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from evaluator.adapters.kafka import Connection, GroupSettings, KafkaLeadership
from evaluator.cli import main
from evaluator.ports import SourceUnusable
from evaluator.wire.records import OutputRecord
from tests.contract.backends import KafkaBackend
from tests.kafka.broker import jars
from tests.kafka.fixtures import PASSWORDS
from tests.kafka.world import World
from tests.waiting import patience
from tests.worker.traffic import traffic

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("brokers")]

READ, WRITE, DESCRIBE_CONFIGS = 3, 4, 10
OPERATIONS = {"Read": READ, "Write": WRITE, "DescribeConfigs": DESCRIBE_CONFIGS}
TOPIC, GROUP, TRANSACTIONAL_ID = 2, 3, 5
KINDS = {"--topic": TOPIC, "--group": GROUP, "--transactional-id": TRANSACTIONAL_ID}
LITERAL, ALLOW = 3, 3
"""Numbers of the protocol."""


@pytest.fixture(scope="module")
def prefix():
    return "rights-"


@pytest.fixture(scope="module")
def settings(secured, authority, prefix, tmp_path_factory):
    """Of a worker that logs in as `evaluator`."""
    password = tmp_path_factory.mktemp("login") / "password"
    password.write_text(PASSWORDS["evaluator"])
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "evaluator",
        "sasl_password_file": password,
        "ssl_cafile": authority.cafile,
        "topic_prefix": prefix,
        "group_id": f"{prefix}group",
        "http_port": 0,
    }


@pytest.fixture(scope="module")
def world(secured, prefix):
    world = World(Connection(secured.bootstrap), prefix, n_tasks=1)
    world.append({0: traffic(1, n_queries=20)})
    return world


@pytest.fixture
def command(secured, settings, capsys):
    """Exit code and the lines of stdout and stderr of a command; log events are left out."""

    def command(*words):
        flags = [f"--set={name}={value}" for name, value in settings.items()]
        code = main([*words, f"--source=kafka://{secured.scram_bootstrap}", *flags])
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if not line.startswith("{")]
        return code, out.splitlines(), lines

    return command


def execute(broker, authority, lines, directory):
    """Executes commands of kafka-acls, as the owner, two at a time, until the broker has them."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} username="owner" password="{PASSWORDS["owner"]}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.cafile),
    }
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    (directory / "admin.properties").write_text(text)

    def execute_one(line):
        tool, *arguments = shlex.split(line)
        assert tool == "kafka-acls.sh"
        command = [*broker._java(jars()), "org.apache.kafka.tools.AclCommand", *arguments]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(execute_one, lines))
    granted = [right for line in lines for right in rights_of(shlex.split(line))]
    assert granted
    asyncio.run(until_applied(Connection(broker.bootstrap), granted, present=True))


def rights_of(words):
    """The rights that a command of kafka-acls grants: operation, kind and name."""
    operation = OPERATIONS[words[words.index("--operation") + 1]]
    pairs = itertools.pairwise(words)
    return [(operation, KINDS[option], name) for option, name in pairs if option in KINDS]


async def change(connection, request, *right):
    """Creates or deletes one right of `evaluator`, until the broker has it."""
    async with asking(connection) as ask:
        await ask(request, right)
    await until_applied(connection, [right], present=request is CreateAclsRequest)


async def until_applied(connection, rights, *, present):
    """Waits until the list of the broker has each of these, or none: it responds before that."""
    async with patience(), asking(connection) as ask:
        for right in rights:
            while bool((await ask(DescribeAclsRequest, right)).resources) != present:
                pass


@contextlib.asynccontextmanager
async def asking(connection):
    """Sends requests about one right of `evaluator`: operation, kind and name."""
    client = AIOKafkaClient(**connection.arguments())
    await client.bootstrap()

    async def ask(request, right):
        operation, kind, name = right
        asked = request(kind, name, LITERAL, "User:evaluator", "*", operation, ALLOW)
        return await client.send(client.get_random_node(), asked)

    try:
        yield ask
    finally:
        await client.close()


def needed(prefix):
    """Every right without which `run` must end, and its expected error."""
    unseen = "No right to see topic {}. Grant the rights of `evaluator check`"
    outputs = ("evaluations", "settled", "windows", "dead-letters")
    return {
        (READ, TOPIC, f"{prefix}rankings"): "No right for reading:? .*{}",
        (READ, TOPIC, f"{prefix}judgments"): "No right for reading:? .*{}",
        (READ, GROUP, f"{prefix}group"): "No right for .*group {}",
        **{(WRITE, TOPIC, f"{prefix}{output}"): unseen for output in outputs},
        (READ, TOPIC, f"{prefix}checkpoints"): "No right for reading .*{}",
        (WRITE, TOPIC, f"{prefix}checkpoints"): "No right .*{}",
    }


LOGS = ("weights-log", "alarms", "alarm-commands")


def needed_by_leader(prefix):
    """Every right without which a leader must end, and its expected error."""
    unseen = "No right to see topic {}. Grant the rights of `evaluator check`"
    return {
        (READ, TOPIC, f"{prefix}settled"): "No right for reading .*{}",
        (READ, TOPIC, f"{prefix}weights"): "No right for reading .*{}",
        (READ, GROUP, f"{prefix}group-leader"): "No right for joining group {}",
        (WRITE, TOPIC, f"{prefix}weights"): "No right for .*{}",
        **{(WRITE, TOPIC, f"{prefix}{log}"): unseen for log in LOGS},
        (WRITE, TRANSACTIONAL_ID, f"{prefix}{prefix}group-leader"): (
            "No right for publishing as transactional id {}"
        ),
    }


async def append(backend, topic):
    """A record with any content."""
    await backend.append(topic, 0, [b"value"])
    await backend.close()


async def leader(bootstrap, settings):
    """Joins the election, begins an epoch, publishes and reads once, as the user of the worker."""
    connection = Connection(
        bootstrap,
        security_protocol=settings["security_protocol"],
        sasl_mechanism=settings["sasl_mechanism"],
        sasl_username=settings["sasl_username"],
        sasl_password_file=str(settings["sasl_password_file"]),
        ssl_cafile=str(settings["ssl_cafile"]),
    )
    leadership = KafkaLeadership(
        connection, GroupSettings(settings["group_id"], settings["topic_prefix"])
    )
    try:
        async with patience():
            assert await leadership.start() == 1
            while not leadership.elected:
                await leadership.follow(timeout_ms=100)
            await leadership.begin_epoch()
            record = OutputRecord(b"key", b"value")
            await leadership.publish([("weights", record), *((log, record) for log in LOGS)])
            while record not in await leadership.follow(timeout_ms=100):
                pass
            await leadership.seek(0, 0)
            while not await leadership.read([0], max_records=10, timeout_ms=100):
                pass
    finally:
        await leadership.stop()


def test_a_worker_needs_the_rights_that_check_prints(
    secured, authority, command, world, prefix, settings, tmp_path, monkeypatch
):
    monkeypatch.setenv("EVALUATOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EVALUATOR_ALARMS", "off")
    code, out, _ = command("check")
    assert code == 5
    assert command("run", "--until-end")[0] == 3
    printed = [line for line in out if line.startswith("kafka-acls.sh ")]
    assert len(printed) == 4
    execute(secured, authority, printed, tmp_path)
    assert command("run", "--until-end") == (0, [], [])
    assert world.committed() == world.ends()
    for number, (right, message) in enumerate(needed(prefix).items()):
        asyncio.run(change(world.connection, DeleteAclsRequest, *right))
        # Without a store, or no checkpoint would be read.
        monkeypatch.setenv("EVALUATOR_STATE_DIR", str(tmp_path / f"state-{number}"))
        code, _, lines = command("run", "--until-end")
        assert (code, len(lines)) == (3, 1), (right, lines)
        assert re.search(message.format(right[2]), lines[0]), lines
        asyncio.run(change(world.connection, CreateAclsRequest, *right))
    for right in (
        (WRITE, TOPIC, f"{prefix}judgments"),
        (DESCRIBE_CONFIGS, TOPIC, f"{prefix}rankings"),
    ):
        asyncio.run(change(world.connection, DeleteAclsRequest, *right))
    assert command("run", "--until-end") == (0, [], [])
    _, out, _ = command("check", "--set=learning=propose")
    further = [line for line in out if line.startswith("kafka-acls.sh ") and line not in printed]
    assert len(further) == 2
    execute(secured, authority, further, tmp_path)
    asyncio.run(append(KafkaBackend(world.connection, prefix), "settled"))
    asyncio.run(leader(secured.scram_bootstrap, settings))
    for right, message in needed_by_leader(prefix).items():
        asyncio.run(change(world.connection, DeleteAclsRequest, *right))
        with pytest.raises(SourceUnusable) as refused:
            asyncio.run(leader(secured.scram_bootstrap, settings))
        assert re.search(message.format(right[2]), str(refused.value)), right
        asyncio.run(change(world.connection, CreateAclsRequest, *right))

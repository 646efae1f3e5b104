"""The rights of docs/security.md: the commands themselves, on a broker that asks for them."""

import shlex
import subprocess

import pytest

from evaluator.adapters.kafka import Connection
from evaluator.adapters.kafka.connection import requests
from evaluator.cli import main
from tests.kafka.broker import Broker, jars
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.kafka

PASSWORD = "s3cret"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(tmp_path_factory.mktemp("broker"), users={"evaluator": PASSWORD}) as broker:
        source = f"--source=kafka://{broker.bootstrap}"
        assert main(["topics", "create", source, "--partitions=1"]) == 0
        yield broker


def documented_commands():
    """Arguments of kafka-acls.sh, one list per command of the page."""
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    block = page.split("## Least rights")[1].split("```sh\n")[1].split("```")[0]
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("$acls ")]


def grant(broker, arguments):
    """What kafka-acls.sh does, as a super user."""
    command = [*broker._java(jars()), "org.apache.kafka.tools.AclCommand"]
    command += ["--bootstrap-server", broker.bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run(broker, tmp_path):
    """Exit code of a worker that logs in as `evaluator`."""
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_username": "evaluator",
        "sasl_password_file": password,
        "http_port": 0,
    }
    flags = [f"--set={name}={value}" for name, value in settings.items()]
    return main(["run", f"--source=kafka://{broker.sasl_bootstrap}", "--until-end", *flags])


def test_a_worker_needs_the_documented_rights_and_no_others(broker, tmp_path):
    *needed, heartbeats = documented_commands()
    assert "rankings" in heartbeats
    assert len(needed) == 3
    for arguments in needed:
        assert run(broker, tmp_path) == 3, f"without {arguments}"
        grant(broker, arguments)
    assert run(broker, tmp_path) == 0


async def test_no_right_is_documented_on_what_is_not_there(broker):
    named = {
        arguments[i + 1]
        for arguments in documented_commands()
        for i, word in enumerate(arguments)
        if word == "--topic"
    }
    async with requests(Connection(broker.bootstrap)) as asking:
        counts = await asking.partition_counts(sorted(named))
    assert None not in counts.values()

"""Addresses of brokers: read in one way by every command, and never printed with a password."""

import re
import socket

import pytest

from evaluator.adapters.kafka import Connection, inspect, parse_addresses
from evaluator.cli import main
from tests.repeats import sized

KAFKA, LOGIN = "kafka://", "user:hush"
COMMANDS = {
    "run": ["run"],
    "check": ["check"],
    "replay": ["replay", "--out=OUT"],
    "fit": ["fit", "--out=OUT"],
    "topics plan": ["topics", "plan"],
    "topics create": ["topics", "create", "--partitions=1"],
    "totals": ["totals"],
    "leader": ["leader", "--set=learning=propose"],
    "weights show": ["weights", "show"],
    "weights freeze": ["weights", "freeze", "--reason=x"],
    "weights roll-back": ["weights", "roll-back", "--reason=x", "--to=1"],
    "weights forget": ["weights", "forget"],
}
REFUSED = {
    "": "an entry is empty",
    "a:1,": "an entry is empty",
    "a:1,,b:2": "an entry is empty",
    "a": "'a' has no port",
    "[::1]": "'[::1]' has no port",
    "a:": "the port of 'a:' is not a number from 1 to 65535",
    "a:0": "the port of 'a:0' is not",
    "a:65536": "the port of 'a:65536' is not",
    "a:-1": "the port of 'a:-1' is not",
    "a:९": "is not a number from 1 to 65535",
    "a:" + "9" * 5_000: "is not a number from 1 to 65535",
    ":9092": "':9092' has no host",
    "a b:1": "has no host",
    "a..b:1": "has no host",
    "a" * 64 + ":1": "has no host",
    "a:1 b:2": "too many colons",
    "::1:9092": "'::1:9092' has too many colons; put an IPv6 address in brackets",
    "[::g]:9092": "contain no IPv6 address",
    "[1.2.3.4]:9092": "contain no IPv6 address",
    "a:1/rankings": "'a:1/rankings' has a path",
    "a:1//": "has a path",
    "kafka://a:1": "has a path",
}


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ["a:1"]),
        ("a:1,b-2.example_c:65535", ["a:1", "b-2.example_c:65535"]),
        (" a:1 , [0:0::1]:9092\t", ["a:1", "[::1]:9092"]),
        ("[fe80::1%eth0]:9092", ["[fe80::1%eth0]:9092"]),
        ("127.0.0.1:09092", ["127.0.0.1:9092"]),
    ],
)
def test_an_address_is_a_host_and_a_port_with_ipv6_in_brackets(text, addresses):
    assert [str(address) for address in parse_addresses(text)] == addresses


def test_an_invalid_address_is_refused_with_the_reason(subtests):
    for text, reason in REFUSED.items():
        with subtests.test(text=text):
            with pytest.raises(ValueError, match=re.escape(reason)) as refused:
                parse_addresses(text)
            assert len(str(refused.value)) < 200


@pytest.mark.slow(alone=False)
def test_every_command_refuses_the_same_addresses_in_one_line(
    tmp_path, monkeypatch, capsys, subtests
):
    for command, words in list(COMMANDS.items())[: sized(len(COMMANDS), quick=3)]:
        for source in ["a", "a:1/path", "[::1]", "::1:9092", ""]:
            with subtests.test(command=command, source=source):
                monkeypatch.chdir(tmp_path)
                assert main([*words, f"--source=kafka://{source}"]) == 2
                out, err = capsys.readouterr()
                assert (out, err.count("\n")) == ("", 1)
                assert REFUSED.get(source, "has") in err
                assert "Give kafka://HOST:PORT[,HOST:PORT], e.g. kafka://localhost:9092." in err
                assert not [*tmp_path.iterdir()]


@pytest.mark.slow(alone=False)
def test_a_password_in_an_address_is_refused_and_never_printed(
    tmp_path, monkeypatch, capsys, subtests
):
    for command in [*list(COMMANDS)[: sized(len(COMMANDS), quick=2)], "compare"]:
        for source in [
            f"kafka://{LOGIN}@a:1",
            f"{KAFKA}a:1,{LOGIN}@b:2",
            f"kafka://{LOGIN}@hush/hush,hush@a:1",
            "kafka://hush@a:1/" + "x" * 500,
            f"KAFKA://{LOGIN}@a:1",
            f"{LOGIN}@a:1",
        ]:
            with subtests.test(command=command, source=source):
                if command == "compare" and not source.startswith("kafka://"):
                    pytest.skip("compare takes names of directories, and those are shown")
                monkeypatch.chdir(tmp_path)
                assert main([*COMMANDS.get(command, [command]), f"--source={source}"]) == 2
                out, err = capsys.readouterr()
                assert (out, err.count("\n")) == ("", 1)
                assert "hush" not in err
                assert len(err) < 700
                if command != "compare" and source.startswith("kafka://"):
                    assert "Set sasl_username and sasl_password_file" in err


async def test_check_connects_to_the_port_of_an_ipv6_address():
    """With the host taken out of its brackets, the port would be part of another address."""
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))  # no listener
        port = taken.getsockname()[1]
        findings = await inspect(Connection(f"[::1]:{port}"), needed_ms=1)
    assert [finding.severity for finding in findings] == ["error"]
    assert f"Broker [::1]:{port} cannot be used" in findings[0].what
    assert f"connecting to [::1]:{port} failed" in findings[0].what

"""Logins and rights: every refusal is reported with a remedy."""

import pytest

from evaluator.adapters.kafka import Connection, GroupSettings, KafkaSink, KafkaSource, inspect
from evaluator.adapters.kafka.clients import requests
from evaluator.ports import SourceUnavailable, SourceUnusable
from tests.contract.backends import KafkaBackend
from tests.kafka.fixtures import PASSWORDS

GROUP = GroupSettings("g")
pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("brokers")]


@pytest.fixture
def login(secured, tmp_path):
    """A connection as alice, with a given password."""

    def login(password=PASSWORDS["alice"]):
        file = tmp_path / "password"
        file.write_text(password + "\n")
        return Connection(
            secured.sasl_bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password_file=str(file),
        )

    return login


async def test_the_right_password_is_accepted_and_a_missing_right_is_another_error(login):
    async with requests(login()) as asking:
        with pytest.raises(SourceUnusable, match="No right for reading the offsets of group g"):
            await asking.committed("g", [])


async def test_a_wrong_password_is_reported_as_such(login):
    with pytest.raises(SourceUnusable, match=r"refuses the login.*sasl_password_file"):
        await KafkaSource(login("wrong"), GROUP).start()
    findings = await inspect(login("wrong"), needed_ms=1)
    assert [finding.severity for finding in findings] == ["error"]


async def test_a_missing_right_is_reported_as_such(secured, login, topic_prefix):
    backend = await KafkaBackend.open(
        Connection(secured.bootstrap), topic_prefix, {"rankings": 1, "judgments": 1}
    )
    with pytest.raises(SourceUnusable, match=rf"No right to see topic {topic_prefix}"):
        await KafkaSource(login(), GroupSettings("g", topic_prefix)).start()
    with pytest.raises(SourceUnusable, match="Grant"):
        await KafkaSink(login(), topic_prefix=topic_prefix).start()
    findings = await inspect(login(), topic_prefix=topic_prefix, needed_ms=1)
    assert any("No right to see" in finding.what for finding in findings)
    await backend.close()


async def test_a_plain_connection_to_a_sasl_listener_ends_in_time(secured):
    with pytest.raises((SourceUnavailable, SourceUnusable)):
        await KafkaSource(Connection(secured.sasl_bootstrap), GROUP).start()


async def test_unreadable_files_are_named(tmp_path):
    missing = Connection(
        "127.0.0.1:9",
        security_protocol="SASL_PLAINTEXT",
        sasl_username="alice",
        sasl_password_file=str(tmp_path / "nowhere"),
    )
    with pytest.raises(SourceUnusable, match="sasl_password_file cannot be read"):
        await KafkaSource(missing, GROUP).start()
    tls = Connection("127.0.0.1:9", security_protocol="SSL", ssl_cafile=str(tmp_path / "no.pem"))
    with pytest.raises(SourceUnusable, match="ssl_cafile"):
        await KafkaSource(tls, GROUP).start()

"""Secrets of a connection to Kafka: read from files at every use, and never printed."""

import asyncio
import os
import ssl

import pytest
from aiokafka import errors as kafka_errors

from evaluator.adapters.kafka import Connection
from evaluator.adapters.kafka.errors import translated
from evaluator.cli import main
from evaluator.ports import SourceUnavailable, SourceUnusable
from tests.kafka.authority import Authority, encrypted

LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "hush-name"}


def password_of(file):
    connection = Connection("127.0.0.1:9", **LOGIN, sasl_password_file=str(file))
    return connection.arguments()["sasl_plain_password"]


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_the_password_is_read_at_every_use_without_its_line_end(tmp_path, end):
    file = tmp_path / "password"
    for password in ("first word", " sëcond "):
        file.write_text(password + end, "utf-8", newline="")
        assert password_of(file) == password


UNREADABLE = {
    "missing": None,
    "empty": b"",
    "an empty line": b"\n",
    "not UTF-8": b"\xff\xfe",
}


@pytest.fixture(params=[*UNREADABLE, "a folder", "no name", "a pipe", "a device", "large"])
def password_file(request, tmp_path):
    """The path of a file without a password."""
    file = tmp_path / "hush"
    content = UNREADABLE.get(request.param)
    if content is not None:
        file.write_bytes(content)
    elif request.param == "a folder":
        file.mkdir()
    elif request.param == "a pipe":
        os.mkfifo(file)
    elif request.param == "a device":
        file.symlink_to("/dev/zero")
    elif request.param == "large":
        file.write_bytes(b"x" * 4_097)
    return "hu\0sh" if request.param == "no name" else str(file)


@pytest.mark.parametrize("name", ["ssl_cafile", "ssl_certfile", "ssl_keyfile"])
def test_a_pipe_in_place_of_a_certificate_is_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    connection = Connection(
        "127.0.0.1:9", security_protocol="SSL", **{name: str(tmp_path / "pipe")}
    )
    with pytest.raises(SourceUnusable, match="it is not a regular file"):
        connection.arguments()
    assert connection.secrets() == (None,) * 4


def test_a_file_without_a_password_is_refused_without_showing_its_path(password_file):
    with pytest.raises(SourceUnusable) as refused:
        password_of(password_file)
    assert "sasl_password_file" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("command", [["run"], ["topics", "plan"], ["replay", "--out=DIR"]])
def test_an_unusable_connection_setting_is_one_line_and_exit_code_3(
    command, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("EVALUATOR_STATE_DIR", str(tmp_path / "state"))  # not that of another test
    (tmp_path / "hush").touch()
    settings = {**LOGIN, "sasl_password_file": tmp_path / "hush", "http_port": 0}
    flags = [f"--set={name}={value}" for name, value in settings.items()]
    command = [word.replace("DIR", str(tmp_path / "out")) for word in command]
    assert main([*command, "--source=kafka://127.0.0.1:9", *flags]) == 3
    (line,) = [each for each in capsys.readouterr().err.splitlines() if not each.startswith("{")]
    assert line.startswith("evaluator: The file of sasl_password_file is empty. Write the password")


def test_the_repr_of_a_connection_has_no_secret(tmp_path):
    connection = Connection("127.0.0.1:9", **LOGIN, sasl_password_file="hush-file")
    for shown in (repr(connection), str(connection), f"{connection}"):
        assert "127.0.0.1:9" in shown
        assert "hush" not in shown


def test_a_key_with_a_passphrase_is_refused_without_a_prompt(authority):
    certfile, keyfile = authority.issue("client")
    files = {"ssl_cafile": str(authority.cafile), "ssl_certfile": str(certfile)}
    tls = {"security_protocol": "SSL", **files}
    Connection("127.0.0.1:9", **tls, ssl_keyfile=str(keyfile)).arguments()
    with pytest.raises(SourceUnusable, match="without a passphrase"):
        Connection("127.0.0.1:9", **tls, ssl_keyfile=str(encrypted(keyfile))).arguments()
    (_, other) = authority.issue("other")
    with pytest.raises(SourceUnusable, match="ssl_certfile and ssl_keyfile"):
        Connection("127.0.0.1:9", **tls, ssl_keyfile=str(other)).arguments()


# Errors of the library, in our words


def tls_error(reason):
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:1)")
    error.reason = reason
    return error


def broken_by(cause):
    error = kafka_errors.KafkaConnectionError("Connection at b:1 closed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (broken_by(tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED")), "certificate required. Set ss"),
        (broken_by(tls_error("SSLV3_ALERT_CERTIFICATE_EXPIRED")), "certificate expired. Set ssl_"),
        (tls_error("TLSV1_ALERT_UNKNOWN_CA"), "unknown ca. Set ssl_certfile and ssl_keyfile"),
        (tls_error("WRONG_VERSION_NUMBER"), "does not use TLS. Set security_protocol"),
        (broken_by(asyncio.IncompleteReadError(b"", 0x15030300)), "uses TLS. Set security_prot"),
        (kafka_errors.SaslAuthenticationFailed("no"), "refuses the login: .*sasl_password_file"),
        (kafka_errors.UnsupportedSaslMechanismError("no"), "Check sasl_mechanism"),
    ],
)
def test_permanent_errors_are_unusable(error, message):
    with pytest.raises(SourceUnusable, match=message), translated("connecting to b:1"):
        raise error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (tls_error("UNEXPECTED_EOF_WHILE_READING"), "UNEXPECTED_EOF"),
        (tls_error("APPLICATION_DATA_AFTER_CLOSE_NOTIFY"), "CLOSE_NOTIFY"),
        (broken_by(asyncio.IncompleteReadError(b"", 4)), "closed the connection.*security_proto"),
        (broken_by(asyncio.IncompleteReadError(b"", None)), "closed the connection"),
        (ConnectionResetError(), "closed the connection.*client certificate"),
        (ConnectionRefusedError(111, "refused"), "connecting to b:1 failed: .*refused"),
        (TimeoutError(), "did not answer in time"),
        (kafka_errors.NotCoordinatorForGroupError(), "Restart that broker if .*Failed to load"),
    ],
)
def test_errors_that_an_outage_may_cause_are_unavailable(error, message):
    with pytest.raises(SourceUnavailable, match=message), translated("connecting to b:1"):
        raise error


def test_files_that_were_usable_are_being_replaced(authority):
    """A certificate is there before its key: whoever reads them tries again."""
    certfile, keyfile = authority.issue("owner")
    files = {"ssl_certfile": str(certfile), "ssl_keyfile": str(keyfile)}
    connection = Connection("127.0.0.1:9", security_protocol="SSL", **files)
    former = keyfile.read_bytes()
    connection.security()
    authority.issue("owner")
    new = keyfile.read_bytes()
    keyfile.write_bytes(former)
    with pytest.raises(SourceUnavailable, match="key values mismatch"):
        connection.security()
    keyfile.write_bytes(new)
    connection.security()

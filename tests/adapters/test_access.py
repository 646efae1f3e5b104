"""Access over HTTP: the token and the certificate."""

import asyncio
import base64
import datetime as dt
import os
import ssl
import threading

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from evaluator.adapters.http import Access, HttpServer, HttpUnusable
from evaluator.adapters.http import access as access_module
from evaluator.cli import main
from tests.adapters.synthetic import FixedViews

TOKEN = "correct-horse-battery"
CLOSED = [
    *("/", "/page.js", "/page.css", "/metrics", "/status", "/totals", "/history"),
    *("/weights", "/nowhere"),
]


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / "hush"
    file.write_text(TOKEN + "\n")
    return file


async def ask(access, path, headers=None, **options):
    server = HttpServer(FixedViews(), host="127.0.0.1", port=0, access=access)
    await server.start()
    scheme = "https" if options else "http"
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(
                f"{scheme}://127.0.0.1:{server.port}{path}", headers=headers or {}, **options
            ) as response,
        ):
            return response.status, response.headers, await response.text()
    finally:
        await server.stop()


def basic(password, user="anyone"):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# The token


@pytest.mark.parametrize("path", CLOSED)
async def test_requests_without_the_token_are_rejected(token_file, path):
    status, headers, body = await ask(Access(token_file=str(token_file)), path)
    assert status == 401
    assert headers["WWW-Authenticate"].startswith("Basic ")
    assert headers["X-Frame-Options"] == "DENY"
    assert "http_token_file" in body
    assert TOKEN not in body


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_probes_need_no_token(token_file, path):
    assert (await ask(Access(token_file=str(token_file)), path))[0] == 200


@pytest.mark.parametrize("path", CLOSED[:-2])
@pytest.mark.parametrize("header", [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic(TOKEN)])
async def test_requests_with_the_token_are_served(token_file, path, header):
    response = await ask(Access(token_file=str(token_file)), path, {"Authorization": header})
    assert response[0] == 200


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        TOKEN,
        f"Token {TOKEN}",
        "Bearer \udce4",
        "Basic",
        "Basic %%%",
        "Basic ä",
        basic(""),
        basic("x", user=TOKEN),
        "Basic " + base64.b64encode(TOKEN.encode()).decode(),
    ],
)
def test_other_authorization_headers_are_rejected(token_file, header):
    assert not Access(token_file=str(token_file)).admits(header)


def test_without_a_token_file_all_requests_are_served():
    assert Access().admits(None)


def test_a_new_token_takes_effect_at_once(token_file):
    access = Access(token_file=str(token_file))
    token_file.write_text("another-token-of-today")
    assert not access.admits(f"Bearer {TOKEN}")
    assert access.admits("Bearer another-token-of-today")


@pytest.mark.parametrize(
    "content", [None, b"", b"\n", b"fifteen-chars-1", b"sixteen chars 12", b"\xff" * 20]
)
def test_a_file_without_a_token_is_refused_at_startup_without_showing_its_path(tmp_path, content):
    file = tmp_path / "hush"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(HttpUnusable, match="http_token_file") as refused:
        Access(token_file=str(file)).start()
    assert "hush" not in str(refused.value)


def irregular_file(kind, path):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"x" * 4_097)
    return str(path)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pipe", "it is not a regular file"),
        ("device", "it is not a regular file"),
        ("directory", "Is a directory"),
        ("large", "it has more than 4096 bytes"),
    ],
)
def test_a_token_file_that_is_not_a_small_regular_file_is_refused_at_once(tmp_path, kind, reason):
    name = irregular_file(kind, tmp_path / "hush")
    with pytest.raises(HttpUnusable, match=f"http_token_file cannot be used: {reason}") as refused:
        Access(token_file=name).start()
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
async def test_a_token_file_that_becomes_unusable_rejects_all_requests(token_file, tmp_path, kind):
    access = Access(token_file=str(token_file))
    server = HttpServer(FixedViews(), host="127.0.0.1", port=0, access=access)
    await server.start()
    try:
        token_file.unlink()
        irregular_file(kind, token_file)
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
            session.get(f"http://127.0.0.1:{server.port}/metrics") as response,
        ):
            assert response.status == 401
    finally:
        await server.stop()


async def test_the_token_is_read_off_the_event_loop(token_file, monkeypatch):
    threads = []

    def read(path):
        threads.append(threading.current_thread())
        return TOKEN.encode()

    monkeypatch.setattr(access_module, "read_secret", read)
    access = Access(token_file=str(token_file))
    await ask(access, "/metrics", {"Authorization": f"Bearer {TOKEN}"})
    assert len(threads) == 2  # at the start and for the request
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
@pytest.mark.parametrize("broken", ["certfile", "keyfile"])
def test_a_certificate_that_is_not_a_regular_file_is_refused_at_once(pair, tmp_path, broken, kind):
    name = irregular_file(kind, tmp_path / "special")
    with pytest.raises(HttpUnusable, match="in PEM"):
        Access(**{**pair, broken: name}).start()


def test_a_deleted_token_file_rejects_all_requests_and_is_logged_once(token_file):
    access = Access(token_file=str(token_file))
    token_file.unlink()
    with capture_logs() as logged:
        assert not access.admits("Bearer ")
        assert not access.admits(f"Bearer {TOKEN}")
    assert [entry["event"] for entry in logged] == ["http_token_unusable"]
    token_file.write_text(TOKEN)
    assert access.admits(f"Bearer {TOKEN}")


# TLS


def write_pair(folder, name="evaluator.test"):
    """A certificate of a day for loopback, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "tls.crt").write_bytes(certificate.public_bytes(pem))
    (folder / "tls.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "tls.crt", folder / "tls.key"


@pytest.fixture
def pair(tmp_path):
    certfile, keyfile = write_pair(tmp_path)
    return {"certfile": str(certfile), "keyfile": str(keyfile)}


def trusting(pair):
    context = ssl.create_default_context(cafile=pair["certfile"])
    context.check_hostname = False
    return context


async def test_the_server_uses_tls_with_a_certificate(pair):
    status, *_ = await ask(Access(**pair), "/metrics", ssl=trusting(pair))
    assert status == 200
    with pytest.raises(aiohttp.ClientError):
        await ask(Access(**pair), "/metrics")


def test_old_versions_of_tls_are_refused(pair):
    assert Access(**pair).start().minimum_version == ssl.TLSVersion.TLSv1_2


async def test_a_renewed_certificate_is_used_and_an_invalid_one_is_not(pair, tmp_path):
    access = Access(**pair)
    server = HttpServer(FixedViews(), host="127.0.0.1", port=0, access=access)
    await server.start()

    async def name():
        trust_all = ssl.create_default_context()
        trust_all.check_hostname = False
        trust_all.verify_mode = ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trust_all)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return x509.load_der_x509_certificate(der).subject.rfc4514_string()

    try:
        assert await name() == "CN=evaluator.test"
        write_pair(tmp_path, "renewed.test")
        with capture_logs() as logged:
            access.renew()
            access.renew()
        assert [entry["event"] for entry in logged] == ["http_certificate_renewed"]
        assert await name() == "CN=renewed.test"

        key = (tmp_path / "tls.key").read_bytes()
        write_pair(tmp_path, "half.test")
        (tmp_path / "tls.key").write_bytes(key)
        os.utime(tmp_path / "tls.key", ns=(1, 1))
        with capture_logs() as logged:
            access.renew()
        assert [entry["event"] for entry in logged] == ["http_certificate_unusable"]
        assert await name() == "CN=renewed.test"
    finally:
        await server.stop()


@pytest.mark.parametrize("broken", ["certfile", "keyfile"])
@pytest.mark.parametrize("content", [None, "", "not PEM"])
def test_an_unusable_certificate_and_key_are_refused_at_startup(pair, tmp_path, broken, content):
    file = tmp_path / "broken.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(HttpUnusable, match="in PEM"):
        Access(**{**pair, broken: str(file)}).start()


# From the command line


def test_run_refuses_an_unreadable_token_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EVALUATOR_STATE_DIR", str(tmp_path / "state"))  # not that of another test
    setting = f"--set=http_token_file={tmp_path / 'nowhere'}"
    assert main(["run", "--source=kafka://127.0.0.1:9", "--set=http_port=0", setting]) == 2
    assert "http_token_file cannot be used" in capsys.readouterr().err


def test_health_works_with_tls_and_a_token(pair, token_file, capsys):
    async def check_health():
        access = Access(token_file=str(token_file), **pair)
        server = HttpServer(FixedViews(), host="127.0.0.1", port=0, access=access)
        await server.start()
        flags = {
            "port": server.port,
            "tls_certfile": pair["certfile"],
            "tls_keyfile": pair["keyfile"],
        }
        settings = [f"--set=http_{name}={value}" for name, value in flags.items()]
        try:
            return await asyncio.to_thread(main, ["health", *settings])
        finally:
            await server.stop()

    assert asyncio.run(check_health()) == 0
    assert "alive" in capsys.readouterr().out

"""The addresses of the brokers, the security settings, and a probe of both."""

import asyncio
import hashlib
import random
import ssl
from ipaddress import AddressValueError, IPv6Address
from typing import Any, Final, NamedTuple

from aiokafka.helpers import create_ssl_context
from msgspec import Struct

from evaluator.adapters.kafka.aiokafka_internals import connect_once
from evaluator.adapters.kafka.errors import closed_by_broker, describe, translated
from evaluator.core.types.records import Log
from evaluator.ports import SourceUnavailable, SourceUnusable
from evaluator.secret_files import MAX_PEM_BYTES, read_password, read_secret, require_readable

MAX_HOST_CHARS: Final = 253  # of a name in the DNS
CLIENT_ID: Final = "evaluator"
CONNECT_TIMEOUT_MS: Final = 5_000
"""Timeout of a connection and its login."""
RETRY_BACKOFF_MS: Final = 100
CLOSED_ATTEMPTS: Final = 3
"""Attempts to connect to a broker that closes the connection without an answer."""


class Address(NamedTuple):
    """The listener of a broker; as text, an IPv6 host is in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """The addresses of HOST:PORT[,HOST:PORT], in their order.

    Raises:
        ValueError: the reason, without a text that may contain a password.

    >>> [*map(str, parse_addresses("a:1, [0::1]:9092"))]
    ['a:1', '[::1]:9092']
    """
    if "@" in text:
        raise ValueError(
            "it has a user or a password, and they do not belong in the address. Set "
            "sasl_username and sasl_password_file"
        )
    return [_parse(entry.strip()) for entry in text.split(",")]


def _parse(entry: str) -> Address:
    if not entry:
        raise ValueError("an entry is empty")
    shown = ascii(entry[:80])
    if "/" in entry:
        raise ValueError(f"{shown} has a path, and a broker has none")
    host, colon, port = entry.rpartition(":")
    if not colon or entry.endswith("]"):
        raise ValueError(f"{shown} has no port")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536):
        raise ValueError(f"the port of {shown} is not a number from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        try:
            return Address(str(IPv6Address(host[1:-1])), int(port))
        except AddressValueError:
            raise ValueError(f"the brackets of {shown} contain no IPv6 address") from None
    if ":" in host:
        raise ValueError(f"{shown} has too many colons; put an IPv6 address in brackets")
    if not _is_host(host):
        raise ValueError(f"{shown} has no host that can be looked up")
    return Address(host, int(port))


def _is_host(host: str) -> bool:
    try:
        host.encode("idna")  # as a DNS query does
    except UnicodeError:
        return False
    return (
        0 < len(host) <= MAX_HOST_CHARS
        and host.isprintable()
        and not any(character in " []\"'\\?#" for character in host)
    )


class Connection(Struct, frozen=True):
    """The bootstrap addresses and the security settings under their names.

    `bootstrap` is HOST:PORT[,HOST:PORT]. Files are read for every connection, so a renewed
    certificate or password is used without a restart. `inputs` are the names of the inputs that do
    not have the default ones; the records of those in `mapped` are of foreign formats, and with
    `has_schemas` some of them name schemas. `needed` are all topics of the process: an error about
    a missing one names all missing ones.
    """

    bootstrap: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password_file: str | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    inputs: tuple[tuple[Log, str], ...] = ()
    mapped: frozenset[Log] = frozenset()
    needed: tuple[str, ...] = ()
    has_schemas: bool = False

    def __repr__(self) -> str:  # without names of users and files
        return f"Connection(bootstrap={self.bootstrap!r})"

    def arguments(self) -> dict[str, Any]:
        """The arguments of every client of aiokafka. Raises as `security`."""
        return {
            "bootstrap_servers": self.bootstrap,
            "client_id": CLIENT_ID,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
            **self.security(),
        }

    def security(self) -> dict[str, Any]:
        """The security arguments alone.

        Raises SourceUnusable for unusable files, and SourceUnavailable if they were usable earlier:
        then they are being replaced, one after the other.
        """
        try:
            arguments = self._security()
        except SourceUnusable as error:
            if self in _USED:
                raise SourceUnavailable(str(error)) from error
            raise
        _USED.add(self)
        return arguments

    def _security(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"security_protocol": self.security_protocol}
        if self.security_protocol in {"SSL", "SASL_SSL"}:
            arguments["ssl_context"] = self._ssl_context()
        if self.security_protocol.startswith("SASL_"):
            arguments["sasl_mechanism"] = self.sasl_mechanism or "PLAIN"
            arguments["sasl_plain_username"] = self.sasl_username
            arguments["sasl_plain_password"] = self._password()
        return arguments

    def secrets(self) -> tuple[bytes | None, ...]:
        """Digests of the current files, to detect changes; None for unreadable files."""
        files = (self.sasl_password_file, self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)
        return tuple(_digest(name) for name in files)

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            require_readable(self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)
            context: ssl.SSLContext = create_ssl_context(
                cafile=self.ssl_cafile,
                certfile=self.ssl_certfile,
                keyfile=self.ssl_keyfile,
                password=lambda: b"",  # instead of a prompt on the terminal
            )
            return context
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise SourceUnusable(
                f"The TLS files cannot be used ({describe(error)}). Check ssl_cafile, ssl_certfile "
                "and ssl_keyfile: PEM files, the key without a passphrase."
            ) from error

    def _password(self) -> str | None:
        if self.sasl_password_file is None:
            return None
        try:
            return read_password(self.sasl_password_file, "sasl_password_file")
        except ValueError as error:
            raise SourceUnusable(str(error)) from None


_USED: Final = set[Connection]()
"""Connections whose files could be used once."""


def _digest(name: str | None) -> bytes | None:
    try:
        secret = None if name is None else read_secret(name, most=MAX_PEM_BYTES)
    except (OSError, ValueError):
        return None
    return None if secret is None else hashlib.sha256(secret).digest()


async def probe(connection: Connection) -> None:
    """Connects and logs in once. Raises SourceUnavailable or SourceUnusable with the reason."""
    failures = []
    security = connection.security()
    addresses = parse_addresses(connection.bootstrap)
    for address in random.sample(addresses, len(addresses)):
        try:
            await connect(address, security, f"connecting to {address}")
        except SourceUnavailable as failure:
            failures.append(str(failure))
        else:
            return
    raise SourceUnavailable(f"No broker answers. {' '.join(failures)}")


async def connect(address: Address, security: dict[str, Any], doing: str) -> None:
    """Connects, logs in and sends one request. Raises SourceUnavailable or SourceUnusable."""
    limits = {"client_id": CLIENT_ID, "request_timeout_ms": CONNECT_TIMEOUT_MS}
    for attempts_left in reversed(range(CLOSED_ATTEMPTS)):
        try:
            with translated(doing):
                await connect_once(*address, {**limits, **security})
        except SourceUnavailable as failure:
            if not attempts_left or not closed_by_broker(failure.__cause__):
                raise
            # Closing may have lost the reason, an alert of TLS.
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
        else:
            return

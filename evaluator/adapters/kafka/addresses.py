"""Addresses of brokers, as `--source` and `bootstrap.servers` have them."""

from ipaddress import AddressValueError, IPv6Address
from typing import NamedTuple

MAX_HOST_CHARS = 253  # of a name in the DNS


class Address(NamedTuple):
    """Where a broker listens; as text, an IPv6 host stands in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """The addresses of HOST:PORT[,HOST:PORT], in their order.

    Raises:
        ValueError: why the text is no such list. It repeats nothing of a text with a password.

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
            raise ValueError(f"what {shown} has in brackets is no IPv6 address") from None
    if ":" in host:
        raise ValueError(f"{shown} has too many colons; an IPv6 address stands in brackets")
    if not _names_host(host):
        raise ValueError(f"{shown} has no host that can be looked up")
    return Address(host, int(port))


def _names_host(host: str) -> bool:
    try:
        host.encode("idna")  # as a look-up does
    except UnicodeError:
        return False
    return (
        0 < len(host) <= MAX_HOST_CHARS
        and host.isprintable()
        and not any(character in " []\"'\\?#" for character in host)
    )

"""How clients choose the partition of a key."""

import zlib
from collections.abc import Callable, Mapping
from typing import Final

from aiokafka.partitioner import murmur2


def of_murmur2(key: bytes, n_partitions: int) -> int:
    """Of the Java client, and of aiokafka."""
    partition: int = (murmur2(key) & 0x7FFFFFFF) % n_partitions
    return partition


def of_crc32(key: bytes, n_partitions: int) -> int:
    """The default of librdkafka: of its clients for Python, Go, .NET and others."""
    return zlib.crc32(key) % n_partitions


def of_fnv1a(key: bytes, n_partitions: int) -> int:
    """Of sarama: the remainder of a signed number, without its sign.

    >>> of_fnv1a(b"a", 7), of_crc32(b"a", 7), of_murmur2(b"a", 7)
    (6, 4, 5)
    """
    number = 0x811C9DC5
    for each in key:
        number = (number ^ each) * 0x01000193 & 0xFFFFFFFF
    signed = number - (1 << 32) if number >> 31 else number
    return abs(signed) % n_partitions


PARTITIONERS: Final[Mapping[str, Callable[[bytes, int], int]]] = {
    "murmur2": of_murmur2,
    "crc32": of_crc32,
    "fnv1a": of_fnv1a,
}

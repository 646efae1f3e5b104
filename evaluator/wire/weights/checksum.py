"""The checksum of a published weights record, without the rest of it."""

from typing import Final

import msgspec

from evaluator.wire.reading import Reader

MAX_WEIGHTS_BYTES: Final = 16 << 20


class WeightsRefused(ValueError):
    """A weights record cannot be used; the message has the reason."""


class _Checksum(msgspec.Struct):
    checksum: str


_read: Final[Reader[_Checksum]] = Reader(
    _Checksum, WeightsRefused, "no checksum", max_bytes=MAX_WEIGHTS_BYTES
)


def checksum_in(record: bytes) -> str:
    """The checksum of a live record. Raises WeightsRefused."""
    return _read(record).checksum

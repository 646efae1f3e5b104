"""Malformed values: reasons and details of their dead letters."""

from typing import NamedTuple

from evaluator.wire.records import MAX_MESSAGE_BYTES


class Malformed(NamedTuple):
    """A malformed value: the reason, and a text for operators."""

    reason: str
    detail: str


def oversize(n_bytes: int) -> Malformed:
    """The refusal of a value of *n_bytes*."""
    return Malformed("oversize", f"{n_bytes} bytes; a message has at most {MAX_MESSAGE_BYTES}")

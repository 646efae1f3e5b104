"""What the mapping of a record gives."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from evaluator.wire.messages.strict import Malformed

MAX_MESSAGES: Final = 1_000
"""Most messages of one record."""


class LeftOut(NamedTuple):
    """A record that gives no message: why, and its mapped timestamp if it has one."""

    why: str
    timestamp_ms: int | None


Outcome = list[bytes] | LeftOut | Malformed


def bounded(messages: list[bytes]) -> Outcome:
    """The messages, or the refusal of too many."""
    if len(messages) > MAX_MESSAGES:
        return Malformed(
            "limit", f"{len(messages)} messages; a record gives at most {MAX_MESSAGES}"
        )
    return messages


def joined(parts: Sequence[Outcome]) -> Outcome:
    """The messages of all parts of a record; the first refusal if there is one."""
    messages: list[bytes] = []
    why, times_ms = "the record has no part", []
    for part in parts:
        if isinstance(part, Malformed):
            return part
        if isinstance(part, list):
            messages += part
            continue
        why = part.why
        times_ms += [] if part.timestamp_ms is None else [part.timestamp_ms]
    return bounded(messages) if messages else LeftOut(why, max(times_ms, default=None))

"""A record of a foreign topic, and the results of its mapping."""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.records import Headers

MAX_MESSAGES: Final = 1_000
MAX_BYTES: Final = 16 << 20
"""Most messages of one record, and most bytes of them."""
_VALUE: Final = re.compile(r' is (".*?"|-?[0-9][^;,]*|true|false|null)(?=$|[;,])')
_INDEX: Final = re.compile(r"\[[0-9]+\]")
_OWN_TIME: Final = re.compile(r"timestamp_ms [0-9]+")


class Record(NamedTuple):
    """A record, as mappings and the functions of entry points receive it."""

    value: bytes
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None

    def header(self, name: str) -> str | None:
        """The text of the last header of this name."""
        for each, value in reversed(self.headers):
            if each == name:
                return None if value is None else value.decode("utf-8", "replace")
        return None


class LeftOut(NamedTuple):
    """A record that gives no message: why, and its mapped timestamp if it has one."""

    why: str
    timestamp_ms: int | None


Outcome = list[bytes] | LeftOut | Malformed


def bounded(messages: Iterable[bytes]) -> list[bytes] | Malformed:
    """The messages; Malformed as soon as they are too many or too large."""
    found: list[bytes] = []
    n_bytes = 0
    for message in messages:
        found.append(message)
        n_bytes += len(message)
        if len(found) > MAX_MESSAGES or n_bytes > MAX_BYTES:
            return Malformed(
                "limit",
                f"a record gives at most {MAX_MESSAGES:,} messages, with {MAX_BYTES >> 20} MiB",
            )
    return found


def joined(parts: Iterable[Outcome]) -> Outcome:
    """The messages of all parts of a record; the first refusal if there is one."""
    refused: Malformed | None = None
    why, times_ms = "the record has no part", list[int]()

    def messages() -> Iterator[bytes]:
        nonlocal refused, why
        for part in parts:
            if isinstance(part, Malformed):
                refused = part
                return
            if isinstance(part, list):
                yield from part
                continue
            why = part.why
            times_ms.extend([] if part.timestamp_ms is None else [part.timestamp_ms])

    found = bounded(messages())
    return refused or found or LeftOut(why, max(times_ms, default=None))


def kind_of(why: str) -> str:
    """A reason without indices and values: that of all records with the same fault.

    >>> kind_of('rows.score: items[3].s is "x", not in the table')
    'rows.score: items[n].s is ..., not in the table'
    """
    return _VALUE.sub(" is ...", _OWN_TIME.sub("timestamp_ms", _INDEX.sub("[n]", why)))

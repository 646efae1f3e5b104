"""Limits of outputs: larger records become stubs, records refused by the broker dead letters.

A stub depends on the logs only. A refusal depends on the configuration of the broker too, so it
counts in no total.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from evaluator.wire.canonical import encode_document
from evaluator.wire.outputs.rows import OutputRows
from evaluator.wire.records import KEPT_BYTES, MAX_MESSAGE_BYTES, SCHEMAS, Output, OutputRecord
from evaluator.wire.state.checkpoint import PART_BYTES
from evaluator.wire.weights.checksum import MAX_WEIGHTS_BYTES

MAX_OUTPUT_BYTES: Final = 4 << 20
"""Limit of the value of an evaluation or a settled query; a larger one becomes a stub."""
MAX_OFFERED_BYTES: Final = 512 << 10
"""Limit of the training members of a settled query; below the default limit of a topic."""
MAX_KEY_BYTES: Final = 64 << 10
"""Limit of the key of a dead letter; a longer one is truncated."""
OVERSIZE_OUTPUT: Final = "oversize_output"
"""Reason of a dead letter for an output that its topic refuses."""
_BATCH_BYTES: Final = 1 << 20
"""Limit of a batch of small records, of any topic."""
_OVERHEAD_BYTES: Final = 64 << 10
"""Upper bound of the keys, headers and framing of an output."""
ROOM_BYTES: Final[Mapping[str, int]] = {
    "evaluations": MAX_OUTPUT_BYTES + _OVERHEAD_BYTES,
    "settled": MAX_OUTPUT_BYTES + _OVERHEAD_BYTES,
    "windows": _BATCH_BYTES,
    "dead-letters": max(_BATCH_BYTES, MAX_MESSAGE_BYTES + MAX_KEY_BYTES + _OVERHEAD_BYTES),
    "checkpoints": max(_BATCH_BYTES, PART_BYTES + _OVERHEAD_BYTES),
    "weights": MAX_WEIGHTS_BYTES,
    "weights-log": MAX_WEIGHTS_BYTES,
    "alarms": _BATCH_BYTES,
    "alarm-commands": _BATCH_BYTES,
    SCHEMAS: _BATCH_BYTES,
}
"""The least `max.message.bytes` of each output topic: its largest record, and a batch of others."""


def bounded(rows: OutputRows) -> OutputRows:
    """Evaluations or settled queries; those beyond MAX_OUTPUT_BYTES become stubs."""
    if rows.max_value_bytes() <= MAX_OUTPUT_BYTES:
        return rows
    return OutputRows.of(
        [
            record
            if len(record.value) <= MAX_OUTPUT_BYTES
            else _stub_of(json.loads(record.value), record)
            for record in rows
        ]
    )


def _stub_of(whole: Mapping[str, Any], record: OutputRecord) -> OutputRecord:
    """The record without grades, texts and training members."""
    last = list(whole).index("values")
    kept = {name: whole[name] for name in list(whole)[: last + 1] if name != "query"}
    kept["grades"] = {}
    if "sources" in whole:
        kept["sources"] = {}
    kept["too_large"] = len(record.value)
    return record._replace(value=encode_document(kept))


class Refused(NamedTuple):
    """The replacement of a record that its topic refuses, and its dead letter."""

    smaller: OutputRecord | None
    letter: OutputRecord | None

    @property
    def counts(self) -> bool:
        """Whether an output is missing or incomplete; a truncated dead letter does not count."""
        return self.smaller is None or self.letter is not None


def refused(record: OutputRecord, output: Output, *, topic: str, partition: int) -> Refused:
    """Replaces a record that is too large for its topic; the replacement is smaller each time.

    An evaluation or a settled query becomes a stub, a dead letter loses its value and then its key;
    a record that is still refused, and any other record, is left out.
    """
    if output == "dead-letters":
        return Refused(_smaller_dead_letter(record), None)
    letter = _dead_letter_of(record, topic, partition)
    try:
        whole = json.loads(record.value)
    except ValueError:  # a checkpoint in parts
        return Refused(None, letter)
    stub = _stub_of(whole, record) if "values" in whole else record
    return Refused(stub if len(stub.value) < len(record.value) else None, letter)


def _dead_letter_of(record: OutputRecord, topic: str, partition: int) -> OutputRecord:
    """The dead letter of an output that its topic refuses: its key, no value."""
    detail = (
        f"topic {topic} refuses this record of {len(record.value)} bytes; "
        "give it a larger max.message.bytes"
    )
    return OutputRecord(
        record.key,
        b"",
        (
            ("topic", topic.encode()),
            ("partition", str(partition).encode()),
            ("reason", OVERSIZE_OUTPUT.encode()),
            ("detail", detail.encode()),
        ),
    )


def _smaller_dead_letter(letter: OutputRecord) -> OutputRecord | None:
    """The next smaller form of a refused dead letter; None if there is none.

    First the value is truncated to KEPT_BYTES, then left out, then the key.
    """
    key, value, headers = letter
    if not value and not key:
        return None
    if value:
        headers = _with(headers, "truncated", len(value))
        return OutputRecord(key, value[:KEPT_BYTES] if len(value) > KEPT_BYTES else b"", headers)
    return OutputRecord(None, b"", _with(headers, "key_truncated", len(key or b"")))


def shorter_key(
    key: bytes | None, headers: Iterable[tuple[str, bytes]]
) -> tuple[bytes | None, tuple[tuple[str, bytes], ...]]:
    """The key of a dead letter, truncated to MAX_KEY_BYTES, and its headers."""
    if key is None or len(key) <= MAX_KEY_BYTES:
        return key, tuple(headers)
    return key[:MAX_KEY_BYTES], _with(tuple(headers), "key_truncated", len(key))


def _with(
    headers: tuple[tuple[str, bytes], ...], name: str, n_bytes: int
) -> tuple[tuple[str, bytes], ...]:
    """The headers with the original length; of several truncations the first counts."""
    if any(each == name for each, _ in headers):
        return headers
    return (*headers, (name, str(n_bytes).encode()))

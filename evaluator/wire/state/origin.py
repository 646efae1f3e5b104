"""Identity of the input logs: last records, metadata of commits, generations of `settled`.

After a topic is recreated, or a log has lost its end and grown again, an offset is of another
record.
"""

import json
from typing import Final, NamedTuple, TypedDict

import xxhash

from evaluator.core.join.changes import LastRecord, LogId, Origin
from evaluator.core.types.records import LOGS, Log
from evaluator.wire.reading import Count, Int64, Reader
from evaluator.wire.records import KEPT_BYTES, Records

_LastRow = tuple[Count, Int64, str]


class OriginRow(TypedDict):
    """An `Origin` in JSON."""

    logs: dict[Log, tuple[str | None, _LastRow | None]]
    ends_lost: Count


_MetadataRow = tuple[str, str | None, _LastRow | None, Count]
_read_metadata: Final[Reader[_MetadataRow]] = Reader(_MetadataRow, ValueError)


def last_record(records: Records) -> LastRecord:
    """The identity of the last of *records*; the same whether its value is truncated or not."""
    parts = [part and part[:KEPT_BYTES] for part in (records.keys[-1], records.values[-1])]
    lengths = [-1 if part is None else len(part) for part in parts]
    hashed = xxhash.xxh3_128_hexdigest(b"%d %d " % (*lengths,) + b"".join(filter(None, parts)))
    stamps = records.timestamps_ms
    stamp = -1 if stamps is None else int(stamps[-1])
    return LastRecord(int(records.offsets[-1]), stamp, hashed)


def note_last(origin: Origin, records: Records) -> None:
    """Updates the last record of a log that was read."""
    log_id = origin.logs[records.log]
    origin.logs[records.log] = log_id._replace(last=last_record(records))


def generation_of(origin: Origin) -> str:
    """Identifier of the input logs, equal in every process that reads the same logs."""
    ids = json.dumps([origin.logs[log].topic_id for log in LOGS])
    lost = f".{origin.ends_lost}" if origin.ends_lost else ""
    return f"{xxhash.xxh3_64_hexdigest(ids.encode())}{lost}"


def origin_from(row: OriginRow) -> Origin:
    """The origin in a row."""
    return Origin({log: _log_id_from(*row["logs"][log]) for log in LOGS}, row["ends_lost"])


def _log_id_from(topic_id: str | None, last: _LastRow | None) -> LogId:
    return LogId(topic_id, None if last is None else LastRecord(*last))


class CommitNote(NamedTuple):
    """Metadata of a committed offset."""

    fingerprint: str
    log_id: LogId = LogId()
    ends_lost: int = 0


def commit_metadata(fingerprint: str, origin: Origin, log: Log) -> str:
    """The metadata of a committed offset of *log*."""
    return json.dumps([fingerprint, *origin.logs[log], origin.ends_lost], separators=(",", ":"))


def commit_note(metadata: str) -> CommitNote:
    """The metadata of a worker; any other text counts as a fingerprint."""
    try:
        fingerprint, topic_id, last, ends_lost = _read_metadata(metadata.encode())
    except ValueError:
        return CommitNote(metadata)
    return CommitNote(fingerprint, _log_id_from(topic_id, last), ends_lost)

"""What a log is known by, in bytes: records, what a group commits, and generations of `settled`.

Offsets name other records once a topic was recreated, or a log has lost its end and grown again.
"""

import json
from typing import Final, NamedTuple, TypedDict

import xxhash

from evaluator.core.join.changes import LastRecord, LogMark, Origin
from evaluator.core.types.records import LOGS, Log
from evaluator.wire.reading import Count, Int64, Reader
from evaluator.wire.records import KEPT_BYTES, Records

_LastRow = tuple[Count, Int64, str]


class OriginRow(TypedDict):
    """An `Origin`, as JSON has it."""

    logs: dict[Log, tuple[str | None, _LastRow | None]]
    ends_lost: Count


_NoteRow = tuple[str, str | None, _LastRow | None, Count]
_note: Final[Reader[_NoteRow]] = Reader(_NoteRow, ValueError)


def last_record(records: Records) -> LastRecord:
    """What the last one of some records is known by, whether it was cut at delivery or not."""
    shown = [part and part[:KEPT_BYTES] for part in (records.keys[-1], records.values[-1])]
    lengths = [-1 if part is None else len(part) for part in shown]
    hashed = xxhash.xxh3_128_hexdigest(b"%d %d " % (*lengths,) + b"".join(filter(None, shown)))
    stamps = records.timestamps_ms
    return LastRecord(records.offsets[-1], -1 if stamps is None else stamps[-1], hashed)


def note_last(origin: Origin, records: Records) -> None:
    """Records of a log were read, in full."""
    mark = origin.logs[records.log]
    origin.logs[records.log] = mark._replace(last=last_record(records))


def generation_of(origin: Origin) -> str:
    """Names the logs that a settled query comes from; the same for whoever reads the same ones."""
    ids = json.dumps([origin.logs[log].topic_id for log in LOGS])
    lost = f".{origin.ends_lost}" if origin.ends_lost else ""
    return f"{xxhash.xxh3_64_hexdigest(ids.encode())}{lost}"


def origin_from(row: OriginRow) -> Origin:
    """An origin as JSON has it."""
    return Origin({log: _mark_from(*row["logs"][log]) for log in LOGS}, row["ends_lost"])


def _mark_from(topic_id: str | None, last: _LastRow | None) -> LogMark:
    return LogMark(topic_id, None if last is None else LastRecord(*last))


class CommitNote(NamedTuple):
    """What a worker says beside an offset that it commits."""

    fingerprint: str
    mark: LogMark = LogMark()
    ends_lost: int = 0


def commit_metadata(fingerprint: str, origin: Origin, log: Log) -> str:
    """The note beside what is committed of *log*."""
    return json.dumps([fingerprint, *origin.logs[log], origin.ends_lost], separators=(",", ":"))


def commit_note(metadata: str) -> CommitNote:
    """The note of somebody; of anybody else the text alone, as if it were a fingerprint."""
    try:
        fingerprint, topic_id, last, ends_lost = _note(metadata.encode())
    except ValueError:
        return CommitNote(metadata)
    return CommitNote(fingerprint, _mark_from(topic_id, last), ends_lost)

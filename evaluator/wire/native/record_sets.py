"""Record batches of Kafka as columns, by the compiled reader."""

import ctypes
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import cramjam
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.types.records import IntArray
from evaluator.wire.native import library
from evaluator.wire.records import KEPT_BYTES, MAX_MESSAGE_BYTES, MAX_RECORD_BYTES

MAX_UNPACKED_BYTES: Final = 64 << 20
"""Limit of the records of a compressed batch."""
AT_END, AT_COMPRESSED, AT_ODD, AT_CUT = range(4)
CHECK_CRC, LEAVE_TRANSACTIONS, IS_CUT, IS_FOREIGN, IS_WHOLE = 1, 2, 4, 8, 16
_REUSED_BYTES: Final = 8 << 20
_HEADER: Final = 61
_MIN_RECORD_BYTES: Final = 7
_CODECS: Final[dict[int, Any]] = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}


class RecordColumns(Struct, frozen=True):
    """Records of one partition; `value_sizes` are those before values were truncated.

    `headers` are those of foreign records, as in `Records`.
    """

    offsets: IntArray
    timestamps_ms: IntArray
    keys: ByteStrings
    values: ByteStrings
    value_sizes: IntArray
    headers: ByteStrings | None = None

    @classmethod
    def joined(cls, parts: Sequence["RecordColumns"]) -> "RecordColumns":
        """The records of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        none = np.zeros(0, np.int64)
        headers = [part.headers for part in parts if part.headers is not None]
        return cls(
            np.concatenate([none, *(part.offsets for part in parts)]),
            np.concatenate([none, *(part.timestamps_ms for part in parts)]),
            ByteStrings.joined([part.keys for part in parts]),
            ByteStrings.joined([part.values for part in parts]),
            np.concatenate([none, *(part.value_sizes for part in parts)]),
            ByteStrings.joined(headers) if headers else None,
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, rows: slice | NDArray[np.bool_]) -> "RecordColumns":
        return RecordColumns(
            self.offsets[rows],
            self.timestamps_ms[rows],
            self.keys[rows],
            self.values[rows],
            self.value_sizes[rows],
            None if self.headers is None else self.headers[rows],
        )


_NO_RECORDS: Final = RecordColumns.joined([])
_ROWS: Final = (
    "offsets",
    "timestamps_ms",
    "key_starts",
    "key_sizes",
    "value_starts",
    "value_sizes",
    "header_starts",
    "header_sizes",
)
_TEXTS: Final = ("keys", "values", "headers")
_SIZES: Final = ("keys_size", "values_size", "headers_size")
_COUNTS: Final = ("n_rows", *_SIZES, "at", "next_offset", "stop")


_Struct: Final = library.struct_of(*_COUNTS, *(f"*{name}" for name in (*_ROWS, *_TEXTS)))
"""`struct record_sets`."""


class _Room(NamedTuple):
    """The destination of records: a struct with pointers to its arrays, a row of each per name."""

    struct: Any
    rows: NDArray[np.int64]  # [_ROWS, n_rows]
    texts: NDArray[np.uint8]  # [_TEXTS, n_bytes]

    @classmethod
    def of(cls, n_bytes: int) -> "_Room":
        """Room for the records in *n_bytes* bytes, rounded up to a power of two."""
        n_bytes = 1 << (n_bytes - 1).bit_length()
        rows = np.empty((len(_ROWS), n_bytes // _MIN_RECORD_BYTES + 1), np.int64)
        texts = np.empty((len(_TEXTS), n_bytes), np.uint8)
        struct = _Struct()
        for name, array in zip((*_ROWS, *_TEXTS), (*rows, *texts), strict=True):
            setattr(struct, name, array.ctypes.data)
        return cls(struct, rows, texts)


class _Reused(threading.local):
    """Arrays of a thread that are used again: their page faults cost more than reading."""

    def __init__(self) -> None:
        self._room = _Room.of(0)
        self._batch = np.empty(0, np.uint8)

    def room(self, n_bytes: int) -> _Room:
        """Room for the records in *n_bytes* bytes, with any contents."""
        if self._room.texts.shape[1] >= n_bytes:
            return self._room
        room = _Room.of(n_bytes)
        if room.texts.shape[1] <= _REUSED_BYTES:
            self._room = room
        return room

    def batch(self, n_bytes: int) -> NDArray[np.uint8]:
        """An array of at least *n_bytes* bytes, with any contents."""
        batch = self._batch
        if len(batch) < n_bytes:
            batch = np.empty(1 << n_bytes.bit_length(), np.uint8)
            if len(batch) <= _REUSED_BYTES:
                self._batch = batch
        return batch[:n_bytes]


_reused: Final = _Reused()


class Found(Struct, frozen=True):
    """The read rows, the position and offset of the next record, and the reason of the end."""

    rows: RecordColumns
    at: int
    next_offset: int
    stop: int


def read(data: NDArray[np.uint8], at: int, next_offset: int, *, flags: int) -> Found:
    """The records from *next_offset* on, of the batches from position *at* on."""
    out, arrays, texts = _reused.room(len(data) - at)
    for name in _COUNTS:
        setattr(out, name, 0)
    out.at, out.next_offset = at, next_offset
    assert library.BUILT is not None  # noqa: S101  # callers have looked
    library.BUILT.read_record_sets(data.ctypes.data, len(data), flags, ctypes.byref(out))
    is_foreign = flags & IS_FOREIGN
    if not out.n_rows and not is_foreign:
        return Found(_NO_RECORDS, out.at, out.next_offset, out.stop)
    columns = dict(zip(_ROWS, arrays[:, : out.n_rows].copy(), strict=True))
    keys, values, headers = (
        ByteStrings(text[: getattr(out, size)].tobytes(), columns[start], columns[sizes])
        for text, size, start, sizes in zip(texts, _SIZES, _ROWS[2::2], _ROWS[3::2], strict=True)
    )
    max_bytes = MAX_RECORD_BYTES if is_foreign else MAX_MESSAGE_BYTES
    rows = RecordColumns(
        columns["offsets"],
        columns["timestamps_ms"],
        _kept(keys, MAX_MESSAGE_BYTES),
        values if flags & IS_WHOLE else _kept(values, max_bytes),
        values.sizes,
        headers if is_foreign else None,
    )
    return Found(rows, out.at, out.next_offset, out.stop)


def _kept(texts: ByteStrings, max_bytes: int) -> ByteStrings:
    """Keys or values with the sizes that are kept."""
    if texts.sizes.max(initial=0) <= max_bytes:
        return texts
    sizes = np.where(texts.sizes > max_bytes, KEPT_BYTES, texts.sizes)
    return ByteStrings(texts.buffer, texts.starts, sizes)


def unpacked(batch: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int] | None:
    """A compressed batch without compression, and the flags to read it with.

    None for other codecs and damaged batches. A batch larger than the limit is cut off there. The
    array is overwritten by the next call.
    """
    codec, room = _CODECS.get(int(batch[22]) & 7), max(8 * len(batch), 1 << 20)
    while codec is not None:
        room = min(room, MAX_UNPACKED_BYTES)
        found, flags, n_bytes = _reused.batch(_HEADER + room), 0, room
        try:
            n_bytes = codec.decompress_into(batch[_HEADER:], found[_HEADER:])
        except cramjam.DecompressionError as error:
            if "write whole buffer" not in str(error):
                return None
            if room < MAX_UNPACKED_BYTES:
                room *= 8
                continue
            flags = IS_CUT
        found[:_HEADER] = batch[:_HEADER]
        found[8:12] = np.frombuffer((n_bytes + _HEADER - 12).to_bytes(4, "big"), np.uint8)
        found[22] &= 0xF8
        return found[: _HEADER + n_bytes], flags
    return None

"""Output records as rows of one text, and the records of a record batch made of them.

A row is, column by column, a fixed text and the next text of a source.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, repeat
from typing import Final, NamedTuple, overload

import numpy as np

from evaluator.core.types.records import IntArray
from evaluator.wire.native.library import BUILT
from evaluator.wire.records import OutputRecord

Headers = tuple[tuple[str, bytes], ...]
MAX_FRAMING_BYTES: Final = 4 * 10 + 2
"""Of a record without headers: attributes, time, and four varints."""


class Texts(NamedTuple):
    """JSON texts in one, each followed by the byte *end*, which none of them contains."""

    joined: bytes
    end: bytes = b"\n"

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> "Texts":
        """These texts."""
        return cls(b"\n".join([*texts, b""]))

    def split(self) -> list[bytes]:
        """The texts."""
        return self.joined.split(self.end)[:-1]


class Objects(NamedTuple):
    """JSON objects: `counts` is `[n_rows]`, the number of members of each."""

    counts: IntArray
    names: Texts
    values: Texts

    def split(self) -> list[bytes]:
        """The objects. Raises ValueError if there are not as many names or values as members."""
        members = zip(self.names.split(), self.values.split(), strict=True)
        pairs = iter([b"%b:%b" % member for member in members])
        objects = [b"{%b}" % b",".join(islice(pairs, n)) for n in self.counts.tolist()]
        return objects if next(pairs, None) is None else []


Source = Texts | Objects
Column = tuple[bytes, Source]
"""A fixed text, and the source of the text after it; columns with one source take turns."""


class OutputRows(Sequence[OutputRecord]):
    """Records in one text, with the same headers. An OutputRecord is made when it is read.

    Args:
        text: keys and values.
        spans: `[n_rows, 4]`, start and end of the key and of the value; -1 twice for no key.
    """

    __slots__ = ("_headers", "_spans", "_text")

    def __init__(self, text: bytes, spans: IntArray, headers: Headers = ()) -> None:
        self._text = text
        self._spans = spans
        self._headers = headers

    @classmethod
    def of(cls, records: Sequence[OutputRecord]) -> "OutputRows":
        """The keys and values of records, without their headers."""
        parts = [part for key, value, _ in records for part in (key or b"", value)]
        ends = np.fromiter(accumulate(map(len, parts)), np.int64, len(parts))
        spans = _spans_of(ends)
        spans[[record.key is None for record in records], :2] = -1
        return cls(b"".join(parts), spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[OutputRecord]:
        text, headers = self._text, self._headers
        for first, last, start, end in self._spans.tolist():
            yield OutputRecord(None if first < 0 else text[first:last], text[start:end], headers)

    @overload
    def __getitem__(self, place: int) -> OutputRecord: ...
    @overload
    def __getitem__(self, place: slice) -> "OutputRows": ...
    def __getitem__(self, place: int | slice) -> "OutputRecord | OutputRows":
        if isinstance(place, slice):
            return OutputRows(self._text, self._spans[place], self._headers)
        (record,) = OutputRows(self._text, self._spans[[place]], self._headers)
        return record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # equal to lists, which have no hash

    def with_headers(self, headers: Headers) -> "OutputRows":
        """The same keys and values with other headers."""
        return OutputRows(self._text, self._spans, headers)

    def picked(self, order: IntArray) -> "OutputRows":
        """The rows at these positions, in this order."""
        return OutputRows(self._text, self._spans[order], self._headers)

    def n_bytes(self) -> IntArray:
        """Bytes of key and value of each row."""
        return self._spans[:, 1] - self._spans[:, 0] + self._spans[:, 3] - self._spans[:, 2]

    def max_value_bytes(self) -> int:
        """Bytes of the largest value; 0 without rows."""
        return int((self._spans[:, 3] - self._spans[:, 2]).max(initial=0))

    @property
    def headers(self) -> Headers:
        """The headers of every row."""
        return self._headers

    def framed(self) -> bytes | None:
        """The rows as records of a record batch of magic 2; None without the compiled part."""
        if BUILT is None:
            return None
        headers = _framed_headers(self._headers)
        spans = np.ascontiguousarray(self._spans)
        each = MAX_FRAMING_BYTES + len(headers)
        out = np.empty(int(self.n_bytes().sum()) + each * len(spans), np.uint8)
        size = BUILT.frame_records(
            *(self._text, spans.ctypes.data, len(spans)),
            *(headers, len(headers), out.ctypes.data),
        )
        return out[:size].tobytes()


NO_ROWS: Final = OutputRows(b"", np.empty((0, 4), np.int64))


def joined(parts: Sequence[OutputRows]) -> OutputRows:
    """The rows of all parts, one part after the other, without their headers."""
    if len(parts) <= 1:
        return parts[0] if parts else NO_ROWS
    lengths = [len(part._text) for part in parts]
    starts = accumulate(lengths, initial=0)
    spans = [
        np.where(part._spans < 0, -1, part._spans + start)
        for part, start in zip(parts, starts, strict=False)
    ]
    return OutputRows(b"".join(part._text for part in parts), np.concatenate(spans))


def rows_of(
    keys: Sequence[Column], key_end: bytes, values: Sequence[Column], end: bytes, *, n_rows: int
) -> OutputRows:
    """One record per row: the columns of its key and *key_end*, those of its value and *end*.

    Raises:
        ValueError: if a source does not have as many texts as its columns need.
    """
    columns: list[tuple[bytes, Source | None]] = [*keys, (key_end, None), *values, (end, None)]
    sources = list({id(source): source for _, source in columns if source is not None}.values())
    if BUILT is None:
        found = _written_by_python(columns, sources, n_rows)
    else:
        found = _written(BUILT, columns, sources, n_rows)
    if found is None:
        raise ValueError(f"the columns do not have the texts of {n_rows} rows")
    text, ends = found
    return OutputRows(text, _spans_of(ends))


def _spans_of(ends: IntArray) -> IntArray:
    """Spans from the ends of keys and values that follow each other."""
    starts = np.concatenate(([0], ends))[:-1]
    return np.stack((starts, ends), axis=1).reshape(-1, 4)


def _written_by_python(
    columns: Sequence[tuple[bytes, Source | None]], sources: Sequence[Source], n_rows: int
) -> tuple[bytes, IntArray] | None:
    texts = {id(source): source.split() for source in sources}
    if sum(map(len, texts.values())) != n_rows * (len(columns) - 2):
        return None
    items = {place: iter(each) for place, each in texts.items()}
    parts: list[list[Iterable[bytes]]] = [[]]
    for fixed, source in columns:
        parts[-1].append(repeat(fixed))
        if source is None:
            parts.append([])
        else:
            parts[-1].append(items[id(source)])
    rows = list(islice(zip(*parts[0], *parts[1], strict=False), n_rows))
    if len(rows) < n_rows:
        return None
    n_key = len(parts[0])
    fields = [b"".join(part) for row in rows for part in (row[:n_key], row[n_key:])]
    return b"".join(fields), np.fromiter(accumulate(map(len, fields)), np.int64, len(fields))


class _Source(ctypes.Structure):
    _fields_ = (
        *(("at", ctypes.c_void_p), ("end", ctypes.c_void_p)),
        *(("terminator", ctypes.c_int64), ("counts", ctypes.c_void_p)),
    )


class _Column(ctypes.Structure):
    _fields_ = (("fixed", ctypes.c_char_p), ("size", ctypes.c_int64), ("source", ctypes.c_int64))


def _written(
    library: ctypes.CDLL,
    columns: Sequence[tuple[bytes, Source | None]],
    sources: Sequence[Source],
    n_rows: int,
) -> tuple[bytes, IntArray] | None:
    places: dict[int, int] = {}
    structs: list[_Source] = []
    n_bytes = n_rows * sum(len(fixed) for fixed, _ in columns)
    for source in sources:
        places[id(source)], counts = len(structs), None
        parts: tuple[Texts, ...] = (source,) if isinstance(source, Texts) else source[1:]
        if isinstance(source, Objects):
            if len(source.counts) != n_rows or sum(each is source for _, each in columns) > 1:
                return None
            counts, n_bytes = source.counts.ctypes.data, n_bytes + 2 * n_rows
        for each in parts:
            start = ctypes.cast(ctypes.c_char_p(each.joined), ctypes.c_void_p).value or 0
            end = start + len(each.joined)
            structs.append(_Source(start, end, ord(each.end), counts))
            counts, n_bytes = None, n_bytes + len(each.joined)
    source_array = (_Source * len(structs))(*structs)
    column_array = (_Column * len(columns))(
        *[
            _Column(fixed, len(fixed), -1 if source is None else places[id(source)])
            for fixed, source in columns
        ]
    )
    out, ends = np.empty(n_bytes, np.uint8), np.empty(2 * n_rows, np.int64)
    size = library.write_rows(
        *(column_array, len(columns), source_array, len(structs)),
        *(n_rows, out.ctypes.data, ends.ctypes.data),
    )
    return None if size < 0 else (out[:size].tobytes(), ends)


def _framed_headers(headers: Headers) -> bytes:
    framed = bytearray(_varint(len(headers)))
    for name, content in headers:
        for part in (name.encode(), content):
            framed += _varint(len(part)) + part
    return bytes(framed)


def _varint(value: int) -> bytes:
    """A signed varint (zigzag) of a number from 0 on."""
    left, found = value << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)

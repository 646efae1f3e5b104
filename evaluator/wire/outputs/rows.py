"""Output records as rows of one text, and the records of a record batch made of them.

A row is, column by column, a fixed text and the next item of a source.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, repeat
from typing import Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evaluator.core.types.records import IntArray
from evaluator.wire.native.library import BUILT
from evaluator.wire.records import OutputRecord, packed_headers

Headers = tuple[tuple[str, bytes], ...]
MAX_FRAMING_BYTES: Final = 4 * 10 + 2
"""Of a record without headers: attributes, time, and four varints."""
MAX_NUMBER_BYTES: Final = 20
_FIRST: Final = np.zeros(1, np.int64)
_KINDS: Final = {name: kind for kind, name in enumerate(("texts", "numbers", "ranks", "names"))}


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


class Numbers(NamedTuple):
    """Integers, `[n_items]`; with *ranks* null for 0."""

    values: IntArray
    ranks: bool = False

    def split(self) -> list[bytes]:
        """The text of each integer."""
        return [b"%d" % n if n or not self.ranks else b"null" for n in self.values.tolist()]


class TextPool:
    """JSON texts by number, to which texts are only added."""

    def __init__(self, joined: NDArray[np.uint8] | None = None, ends: IntArray = _FIRST) -> None:
        self.joined: Any = bytearray() if joined is None else joined  # a byte follows each text
        self.ends = ends  # `[n_texts + 1]`: text i is from ends[i] on

    def __len__(self) -> int:
        return len(self.ends) - 1

    def add(self, lines: bytes) -> None:
        """Adds texts, each ended by a newline, which none of them contains."""
        ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord("\n")) + 1
        self.ends = np.concatenate((self.ends, ends + len(self.joined)))
        self.joined += lines


class Names(NamedTuple):
    """Texts of a pool: `numbers` is `[n_items]`."""

    numbers: NDArray[np.int32]
    pool: TextPool

    def split(self) -> list[bytes]:
        """The texts."""
        starts, ends = (self.pool.ends[self.numbers + at].tolist() for at in (0, 1))
        return [bytes(self.pool.joined[a : b - 1]) for a, b in zip(starts, ends, strict=True)]


Item = Texts | Numbers | Names


class Members(NamedTuple):
    """JSON objects, or with *pairs* lists of pairs: `counts` is `[n_items]`, members of each."""

    counts: IntArray
    names: Item
    values: Item
    pairs: bool = False

    def split(self) -> list[bytes]:
        """The objects or lists. Raises ValueError if names or values are not as many as members."""
        member, whole = (b"[%b,%b]", b"[%b]") if self.pairs else (b"%b:%b", b"{%b}")
        members = zip(self.names.split(), self.values.split(), strict=True)
        found = iter([member % each for each in members])
        items = [whole % b",".join(islice(found, n)) for n in self.counts.tolist()]
        return items if next(found, None) is None else []


Source = Item | Members
Column = tuple[bytes, Source | None]
"""A fixed text, and the source of the text after it; columns with one source take turns. Without
a source a key or a value ends here."""


class Part(NamedTuple):
    """Columns of some rows: those of the key up to one without a source, and of the value."""

    columns: Sequence[Column]
    n_rows: int


class OutputRows(Sequence[OutputRecord]):
    """Records in one text, with the same headers. An OutputRecord is made when it is read.

    `spans` is `[n_rows, 4]`: start and end of the key and of the value; -1 twice for no key.
    """

    __slots__ = ("headers", "spans", "text")

    def __init__(self, text: NDArray[np.uint8], spans: IntArray, headers: Headers = ()) -> None:
        self.text, self.spans, self.headers = text, spans, headers

    @classmethod
    def of(cls, records: Sequence[OutputRecord]) -> "OutputRows":
        """The keys and values of records, without their headers."""
        parts = [part for key, value, _ in records for part in (key or b"", value)]
        ends = np.fromiter(accumulate(map(len, parts)), np.int64, len(parts))
        spans = _spans_of(ends)
        spans[[record.key is None for record in records], :2] = -1
        return cls(np.frombuffer(b"".join(parts), np.uint8), spans)

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[OutputRecord]:
        text, headers = self.text.data, self.headers
        for first, last, start, end in self.spans.tolist():
            key = None if first < 0 else bytes(text[first:last])
            yield OutputRecord(key, bytes(text[start:end]), headers)

    @overload
    def __getitem__(self, place: int) -> OutputRecord: ...
    @overload
    def __getitem__(self, place: slice | IntArray) -> "OutputRows": ...
    def __getitem__(self, place: int | slice | IntArray) -> "OutputRecord | OutputRows":
        if isinstance(place, int):
            (record,) = self[place : place + 1 or None]
            return record
        return OutputRows(self.text, self.spans[place], self.headers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # equal to lists, which have no hash

    def n_bytes(self) -> IntArray:
        """Bytes of key and value of each row."""
        return self.spans[:, 1] - self.spans[:, 0] + self.spans[:, 3] - self.spans[:, 2]

    def max_value_bytes(self) -> int:
        """Bytes of the largest value; 0 without rows."""
        return int((self.spans[:, 3] - self.spans[:, 2]).max(initial=0))

    def framed(self) -> memoryview | None:
        """The rows as records of a record batch of magic 2; None without the compiled part."""
        if BUILT is None:
            return None
        headers = packed_headers(self.headers)
        spans = np.ascontiguousarray(self.spans)
        each = MAX_FRAMING_BYTES + len(headers)
        out = np.empty(int(self.n_bytes().sum()) + each * len(spans), np.uint8)
        size = BUILT.frame_records(
            *(self.text.ctypes.data, spans.ctypes.data, len(spans)),
            *(headers, len(headers), out.ctypes.data),
        )
        return out[:size].data


def joined(parts: Sequence[OutputRows]) -> OutputRows:
    """The rows of all parts, one part after the other, without their headers."""
    lengths = [len(part.text) for part in parts]
    starts = accumulate(lengths, initial=0)
    spans = [
        np.where(part.spans < 0, -1, part.spans + start)
        for part, start in zip(parts, starts, strict=False)
    ]
    return OutputRows(np.concatenate([part.text for part in parts]), np.concatenate(spans))


def rows_of(parts: Sequence[Part]) -> OutputRows:
    """The rows of all parts, one part after the other.

    Raises:
        ValueError: if a source does not have as many items as its columns need.
    """
    if BUILT is None:
        text, ends = _written_by_python(parts)
    else:
        text, ends = _written(BUILT, parts)
    return OutputRows(text, _spans_of(ends))


def _spans_of(ends: IntArray) -> IntArray:
    """Spans from the ends of keys and values that follow each other."""
    starts = np.concatenate(([0], ends))[:-1]
    return np.stack((starts, ends), axis=1).reshape(-1, 4)


def _mismatch(part: Part) -> ValueError:
    return ValueError(f"the columns do not have the items of {part.n_rows} rows")


def _written_by_python(parts: Sequence[Part]) -> tuple[NDArray[np.uint8], IntArray]:
    fields: list[bytes] = []
    for part in parts:
        texts = {id(source): source.split() for _, source in part.columns if source is not None}
        n_items = sum(source is not None for _, source in part.columns) * part.n_rows
        if sum(map(len, texts.values())) != n_items:
            raise _mismatch(part)
        items = {place: iter(each) for place, each in texts.items()}
        columns: list[list[Iterable[bytes]]] = [[]]
        for fixed, source in part.columns:
            columns[-1].append(repeat(fixed))
            if source is None:
                columns.append([])
            else:
                columns[-1].append(items[id(source)])
        n_key = len(columns[0])
        rows = list(islice(zip(*columns[0], *columns[1], strict=False), part.n_rows))
        if len(rows) < part.n_rows:
            raise _mismatch(part)
        fields += [b"".join(field) for row in rows for field in (row[:n_key], row[n_key:])]
    ends = np.fromiter(accumulate(map(len, fields)), np.int64, len(fields))
    return np.frombuffer(b"".join(fields), np.uint8), ends


class _Source(ctypes.Structure):
    _fields_ = (
        *(("kind", ctypes.c_int64), ("at", ctypes.c_void_p), ("end", ctypes.c_void_p)),
        *(("terminator", ctypes.c_int64), ("pool", ctypes.c_void_p), ("ends", ctypes.c_void_p)),
        *(("n_names", ctypes.c_int64), ("counts", ctypes.c_void_p), ("pairs", ctypes.c_int64)),
    )


class _Column(ctypes.Structure):
    _fields_ = (("fixed", ctypes.c_char_p), ("size", ctypes.c_int64), ("source", ctypes.c_int64))


class _Columns:
    """Columns as the compiled part reads them, and the most bytes that their rows take."""

    def __init__(self, part: Part) -> None:
        self._kept: list[object] = []  # the targets of pointers in the structs
        self._sources: list[_Source] = []
        self.max_bytes = part.n_rows * sum(len(fixed) for fixed, _ in part.columns)
        places: dict[int, int] = {}
        columns = []
        for fixed, source in part.columns:
            if source is not None and id(source) not in places:
                places[id(source)] = len(self._sources)
                uses = sum(each is source for _, each in part.columns)
                if isinstance(source, Members) and len(source.counts) != uses * part.n_rows:
                    raise _mismatch(part)
                self._add(source)
            place = -1 if source is None else places[id(source)]
            columns.append(_Column(fixed, len(fixed), place))
        self.arguments = (
            *((_Column * len(columns))(*columns), len(columns)),
            *((_Source * len(self._sources))(*self._sources), len(self._sources), part.n_rows),
        )

    def _add(self, source: Source) -> None:
        if not isinstance(source, Members):
            self._sources.append(self._item(source))
            return
        names = self._item(source.names)
        names.counts, names.pairs = self._address(source.counts, np.int64), source.pairs
        self._sources += names, self._item(source.values)
        self.max_bytes += 2 * len(source.counts) + 4 * int(source.counts.sum())

    def _item(self, item: Item) -> _Source:
        if isinstance(item, Texts):
            at = self._address(np.frombuffer(item.joined, np.uint8), np.uint8)
            self.max_bytes += len(item.joined)
            end = at + len(item.joined)
            return _Source(_KINDS["texts"], at, end, terminator=ord(item.end))
        if isinstance(item, Numbers):
            at = self._address(item.values, np.int64)
            self.max_bytes += MAX_NUMBER_BYTES * len(item.values)
            return _Source(
                _KINDS["ranks" if item.ranks else "numbers"], at, at + 8 * len(item.values)
            )
        at, ends = self._address(item.numbers, np.int32), item.pool.ends
        last, first = (ends.take(item.numbers + at, mode="clip").sum() for at in (1, 0))
        self.max_bytes += int(last - first)
        return _Source(
            *(_KINDS["names"], at, at + 4 * len(item.numbers)),
            pool=self._address(np.frombuffer(item.pool.joined, np.uint8), np.uint8),
            ends=self._address(ends, np.int64),
            n_names=len(item.pool),
        )

    def _address(self, array: NDArray[np.generic], dtype: DTypeLike) -> int:
        kept = np.ascontiguousarray(array, dtype)
        self._kept.append(kept)
        return kept.ctypes.data


def _written(library: ctypes.CDLL, parts: Sequence[Part]) -> tuple[NDArray[np.uint8], IntArray]:
    all_columns = list(map(_Columns, parts))
    out = np.empty(sum(columns.max_bytes for columns in all_columns), np.uint8)
    ends = np.empty(2 * sum(part.n_rows for part in parts), np.int64)
    size = n_ends = 0
    for part, columns in zip(parts, all_columns, strict=True):
        size = library.write_rows(
            *columns.arguments, size, out.ctypes.data, ends[n_ends:].ctypes.data
        )
        if size < 0:
            raise _mismatch(part)
        n_ends += 2 * part.n_rows
    return out[:size], ends

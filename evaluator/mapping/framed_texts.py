"""Records with a schema as JSON of the members that paths name, for a plan.

The compiled part is sound, not complete: `avro.py` and `protobuf.py` decode the records that it
refuses.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.mapping.framing import HEADER
from evaluator.mapping.schemas import MAX_SCHEMAS
from evaluator.wire.native import library
from evaluator.wire.records import Records

WANTED, REPEATED, PRESENCE = 1, 2, 4
_HEAD: Final = 8  # a zero byte, the id, and up to three bytes of the indexes of a message
_FRAME: Final = 5
_NONE, _UNFRAMED = -2, -1
_ROOM: Final = 12, 1_024  # bytes of JSON for each of a record, and for each record


class Part(NamedTuple):
    """`struct text_part`, with the name itself."""

    name: str
    type: int
    use: int = 0
    number: int = 0
    oneof: int = 0


_Struct: Final = library.struct_of(
    *"*types *parts *names root is_protobuf *to *end *starts *sizes *slots n_elements".split()
)
"""`struct texts`."""


class Tables:
    """The tables of `texts.h`."""

    def __init__(self, *, is_protobuf: bool = False) -> None:
        self.types: list[tuple[int, ...]] = []
        self.parts: list[tuple[int, ...]] = []
        self.root = 0
        self.is_protobuf = is_protobuf
        self._names = bytearray()

    def add(self, kind: int, parts: Sequence[Part], n: int | None = None, *, wire: int = 0) -> int:
        """Adds a type and its parts; returns its number."""
        first = len(self.parts)
        for part in parts:
            name = part.name.encode()
            self.parts.append((len(self._names), len(name), *part[1:]))
            self._names += name
        self.types.append((kind, first, len(parts) if n is None else n, wire))
        return len(self.types) - 1

    def texts(self, values: ByteStrings, begins: NDArray[np.int64]) -> ByteStrings:
        """The texts of values, each from a position on that is after its frame."""
        n, (factor, room) = len(values), _ROOM
        n_bytes = factor * int(values.sizes.sum()) + room * n
        starts, ends = values.starts + begins, values.starts + values.sizes
        out = np.empty(n_bytes, np.uint8)
        arrays: dict[str, NDArray[Any]] = {
            **self._arrays,
            "starts": np.empty(n, np.int64),
            "sizes": np.empty(n, np.int64),
            "slots": np.empty(len(self.parts) + 1, np.int64),
        }
        places = {name: array.ctypes.data for name, array in arrays.items()}
        first = out.ctypes.data
        struct = _Struct(
            **places,
            root=self.root,
            is_protobuf=self.is_protobuf,
            to=first,
            end=first + n_bytes,
        )
        library.BUILT.texts_to_json(  # type: ignore[union-attr] # or there is no plan
            values.buffer, starts.ctypes.data, ends.ctypes.data, n, ctypes.byref(struct)
        )
        size = int(struct.to or 0) - first
        return ByteStrings(out[:size].tobytes(), arrays["starts"], arrays["sizes"])

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "types": np.array(self.types, np.int64),
            "parts": np.array([*self.parts, (0,) * 6], np.int64),
            "names": np.frombuffer(bytes(self._names) or b"\0", np.uint8),
        }


TablesOf = Callable[[int, tuple[int, ...]], Tables | None]
"""The tables of a schema, by its id and the indexes of a message.

Raises any error if it is unknown or cannot have them.
"""


class FramedTexts:
    """The texts of records, by the schemas that they name.

    *unframed* are the tables of records without a frame, if they may have none. With *has_indexes*
    frames have the indexes of a message; at most two small ones are read here.
    """

    def __init__(
        self, tables: TablesOf, *, unframed: Tables | None = None, has_indexes: bool = False
    ) -> None:
        self.tables, self._unframed, self._has_indexes = tables, unframed, has_indexes
        self._known: dict[int, Tables | None] = {}

    def of(self, records: Records) -> Records:
        """The records with texts as values; None where there is none."""
        values, n = records.values, len(records)
        frames, begins = self._frames(records)
        buffer, starts, sizes = bytearray(), np.zeros(n, np.int64), np.full(n, -1, np.int64)
        for frame in np.unique(frames[frames != _NONE]).tolist():
            tables = self._unframed if frame == _UNFRAMED else self._tables_of(frame)
            rows = np.flatnonzero(frames == frame)
            if tables is not None:
                texts = tables.texts(values[rows], begins[rows])
                starts[rows], sizes[rows] = texts.starts + len(buffer), texts.sizes
                buffer += texts.buffer
        return replace(records, values=ByteStrings(bytes(buffer) or b"\0", starts, sizes))

    def _frames(self, records: Records) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The schema that each frame names, as a number, and the size of the frame."""
        values = records.values
        data, at = np.frombuffer(values.buffer, np.uint8), np.arange(_HEAD)
        places = np.minimum(np.maximum(values.starts, 0)[:, None] + at, len(data) - 1)
        heads = np.where(at < values.sizes[:, None], data[places], 0xFF).astype(np.int64)
        is_framed, is_unframed = heads[:, 0] == 0, (heads[:, 0] > 1) & (values.sizes > 0)
        if records.headers is not None and HEADER.encode() in records.headers.buffer:
            by_value = [HEADER.encode() not in (each or b"") for each in records.headers]
            is_framed, is_unframed = is_framed & by_value, is_unframed & by_value
        begins = np.where(is_framed, _FRAME, 0)
        frames = heads[:, 1:_FRAME] @ (1 << np.array([48, 40, 32, 24]))
        if self._has_indexes:
            n_indexes, indexes = heads[:, _FRAME] // 2, heads[:, _FRAME + 1 :]
            is_given = at[:2] < n_indexes[:, None]
            is_framed &= (heads[:, _FRAME] <= 4) & (heads[:, _FRAME] % 2 == 0)
            is_framed &= ((indexes % 2 == 0) & (indexes < 0x80) | ~is_given).all(axis=1)
            frames += n_indexes << 16 | (np.where(is_given, indexes, 0) @ np.array([1 << 8, 1]))
            begins += is_framed * (1 + n_indexes)
        else:
            is_framed &= values.sizes >= _FRAME
        unframed = np.where(is_unframed, _UNFRAMED, _NONE)
        return np.where(is_framed, frames, unframed), begins

    def _tables_of(self, frame: int) -> Tables | None:
        if frame not in self._known:
            indexes = (frame >> 9 & 0x7F, frame >> 1 & 0x7F)[: frame >> 16 & 0xFF]
            if len(self._known) >= MAX_SCHEMAS:  # most are of no schema
                self._known.clear()
            try:
                self._known[frame] = self.tables(frame >> 24, indexes or (0,))
            except Exception:  # noqa: BLE001  # the slow path decodes, or refuses with the reason
                self._known[frame] = None
        return self._known[frame]

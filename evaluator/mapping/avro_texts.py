"""Records in Avro as JSON of the members that paths name, which a plan maps then.

The compiled part is sound, not complete: `avro.py` decodes the records that it refuses.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.mapping.avro import schema_of
from evaluator.mapping.framing import HEADER
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.members import Tree, tree_of
from evaluator.mapping.schemas import Answer
from evaluator.wire.native import library
from evaluator.wire.records import Records

_FRAME: Final = 5  # a zero byte, and the id
_ROOM: Final = 6, 1_024  # bytes of JSON for each of Avro, and for each record
_KINDS: Final = {
    name: number
    for number, name in enumerate(
        "null boolean long float double bytes string fixed enum record union array map".split()
    )
} | {"int": 2}


class _Struct(ctypes.Structure):
    """`struct avro`."""

    _fields_ = tuple(
        (name, ctypes.c_int64 if name == "root" else ctypes.c_void_p)
        for name in ("types", "parts", "texts", "root", "to", "end", "starts", "sizes")
    )


class AvroTexts:
    """The texts of framed records, by the schemas that they name."""

    def __init__(self, mapping: LogMapping, answers: Mapping[str, Answer]) -> None:
        self._tree = tree_of(mapping)
        self._answers = answers
        self._tables: dict[int, _Tables | None] = {}

    def of(self, records: Records) -> Records:
        """The records with texts as values; None where there is none."""
        values, n = records.values, len(records)
        is_framed = values.sizes >= _FRAME
        data = np.frombuffer(values.buffer, np.uint8)
        places = np.where(is_framed, values.starts, 0)[:, None] + np.arange(_FRAME)
        frames = data[np.minimum(places, len(data) - 1)].astype(np.int64)
        is_framed &= frames[:, 0] == 0
        if records.headers is not None and HEADER.encode() in records.headers.buffer:
            is_framed &= [HEADER.encode() not in (each or b"") for each in records.headers]
        ids = frames[:, 1:] @ (1 << np.array([24, 16, 8, 0]))
        buffer, starts, sizes = bytearray(), np.zeros(n, np.int64), np.full(n, -1, np.int64)
        for number in np.unique(ids[is_framed]).tolist():
            tables = self._tables_of(number)
            rows = np.flatnonzero(is_framed & (ids == number))
            if tables is not None:
                texts = tables.texts(values[rows])
                starts[rows], sizes[rows] = texts.starts + len(buffer), texts.sizes
                buffer += texts.buffer
        return replace(records, values=ByteStrings(bytes(buffer) or b"\0", starts, sizes))

    def _tables_of(self, number: int) -> "_Tables | None":
        if number not in self._tables:
            answer = self._answers.get(str(number))
            if answer is None:
                return None
            try:
                self._tables[number] = _Tables(answer, self._tree)
            except Exception:  # noqa: BLE001  # `avro.py` decodes, or refuses with the reason
                self._tables[number] = None
        return self._tables[number]


class _Tables:
    """The tables of `avro.h`. Raises any error for a schema that these cannot have."""

    def __init__(self, answer: Answer, tree: Tree) -> None:
        schema, self._names = schema_of(answer)
        self._texts = bytearray()
        self._types: list[tuple[int, int, int]] = []
        self._parts: list[tuple[int, int, int, bool]] = []
        self._known: dict[tuple[str, int], int] = {}
        root = self._type(schema, tree)
        self._tables: dict[str, NDArray[Any]] = {
            "types": np.array(self._types, np.int64),
            "parts": np.array([*self._parts, (0,) * 4], np.int64),
            "texts": np.frombuffer(bytes(self._texts) or b"\0", np.uint8),
        }
        self._root = root

    def texts(self, values: ByteStrings) -> ByteStrings:
        """The texts of framed values."""
        n, (factor, room) = len(values), _ROOM
        n_bytes = factor * int(values.sizes.sum()) + room * n
        starts, ends = values.starts + _FRAME, values.starts + values.sizes
        out = np.empty(n_bytes, np.uint8)
        arrays = {"starts": np.empty(n, np.int64), "sizes": np.empty(n, np.int64)}
        places = {name: array.ctypes.data for name, array in (self._tables | arrays).items()}
        first = out.ctypes.data
        struct = _Struct(**places, root=self._root, to=first, end=first + n_bytes)
        library.BUILT.avro_to_json(  # type: ignore[union-attr] # or there is no plan
            values.buffer, starts.ctypes.data, ends.ctypes.data, n, ctypes.byref(struct)
        )
        size = int(struct.to or 0) - first
        return ByteStrings(out[:size].tobytes(), arrays["starts"], arrays["sizes"])

    def _type(self, schema: Any, tree: Tree | None) -> int:
        """The number of a type, of whose members those in *tree* are written."""
        if isinstance(schema, list):
            return self._add("union", [("", self._type(each, tree), True) for each in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(schema, dict) and isinstance(kind, dict | list):
            return self._type(kind, tree)
        if kind in self._names or (isinstance(schema, dict) and "name" in schema):
            name = schema["name"] if isinstance(schema, dict) and "name" in schema else kind
            key = name, id(tree)
            if key not in self._known:
                self._known[key] = self._named(self._names.get(name, schema), tree)
            return self._known[key]
        if kind == "array":
            return self._add(kind, [("", self._type(schema["items"], tree), True)])
        if kind == "map":
            others = ("", self._type(schema["values"], None), False)
            named = [
                (key, self._type(schema["values"], below), True)
                for key, below in (tree or {}).items()
            ]
            return self._add(kind, [others, *named])
        return self._add(kind, [])

    def _named(self, schema: Any, tree: Tree | None) -> int:
        kind = schema["type"]
        if kind == "fixed":
            self._types.append((_KINDS[kind], 0, schema["size"]))
            return len(self._types) - 1
        if kind == "enum":
            return self._add(kind, [(symbol, 0, True) for symbol in schema["symbols"]])
        fields = [(each["name"], each["type"]) for each in schema["fields"]]
        tree = tree or {}
        return self._add(
            kind, [(name, self._type(of, tree.get(name)), name in tree) for name, of in fields]
        )

    def _add(self, kind: str, parts: list[tuple[str, int, bool]]) -> int:
        first = len(self._parts)
        for name, number, is_wanted in parts:
            text = name.encode()
            self._parts.append((len(self._texts), len(text), number, is_wanted))
            self._texts += text
        self._types.append((_KINDS[kind], first, len(parts)))
        return len(self._types) - 1

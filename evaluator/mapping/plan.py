"""A mapping of JSON as a plan of the compiled mapper, which gives messages without Python objects.

The plan is sound, not complete: `messages` maps the records that it does not accept.
"""

import ctypes
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.mapping.kinds import BOOLEAN, INTEGER, NUMBER, TEXT, TIME
from evaluator.mapping.log_mapping import LogMapping, Member, Members
from evaluator.mapping.messages import JUDGMENT_HEAD, RANKING_HEAD, WRITTEN_NAMES, encode
from evaluator.mapping.paths import Path, Steps
from evaluator.mapping.values import PER_MS, Unfit, converter
from evaluator.wire.messages.limits import MAX_CANDIDATES, SCHEMA_VERSION
from evaluator.wire.native import library
from evaluator.wire.native.library import MessageTexts
from evaluator.wire.records import Records

_MAX_ADD: Final = 1 << 53
_ROOM: Final = 256  # bytes of a message besides its texts and those of the record
_WHOLE: Final = re.compile(r"true|false|0|[1-9][0-9]{0,18}", re.ASCII)

# `enum member_kind` of mapping.h
_FIXED, _RECORD_TIME, _CHOICE, _PRESENT, _COLUMN, _ROW_NUMBERS, _OBJECT, _OBJECT_END, _GRADES = (
    *(0, 7, 8, 9, 10, 11, 12, 13, 14),
)
_KINDS: Final = {TEXT: 1, NUMBER: 2, INTEGER: 3, BOOLEAN: 4, TIME: 5}
_ISO_TIME: Final = 6
_ONE_VALUE, _ROWS, _ARRAY = range(3)
_OF_KEY, _OTHERWISE = -1, -2


class _Unplanned(Exception):
    """The compiled mapper does not support the mapping."""


class _Node(Struct):
    """`struct node`."""

    slot: int
    inner: dict[str, "_Node"] = field(default_factory=dict)
    form: int = _ONE_VALUE
    row_slot: int = 0


_Struct: Final = library.struct_of(
    *"*nodes *members *paths *choices *texts n_members n_slots n_row_slots *slots *rows".split(),
    *"*keys *key_starts *key_sizes *times_ms *to *end *starts *sizes at n_rows n_cleared".split(),
)
"""`struct mapping`."""


def plan_of(mapping: LogMapping) -> "Plan | None":
    """The plan of a mapping; None if the compiled mapper was not built or does not support it."""
    has_texts = mapping.format != "otlp" and mapping.envelope != "debezium"
    if library.BUILT is None or not has_texts or mapping.function is not None:
        return None
    try:
        return Plan(mapping)
    except (_Unplanned, Unfit):  # no value of a table fits: each record has its refusal
        return None


class Plan:
    """The tables of `mapping.h`. Raises _Unplanned."""

    def __init__(self, mapping: LogMapping) -> None:
        self._n_slots = self._n_row_slots = 0
        self._texts = bytearray()
        self._members: list[Sequence[int]] = []
        self._paths: list[int] = []
        self._choices: list[Sequence[int]] = []
        self._root = _Node(0)
        self._rows = self._root
        if mapping.each is not None:
            self._rows = self._node(mapping.each.steps)
            self._rows.form = _ROWS
        self._mapping = mapping
        self._compile()
        self._tables: dict[str, NDArray[Any]] = {
            "nodes": np.array(self._nodes(), np.int64),
            "members": np.array(self._members, np.int64),
            "paths": np.array([*self._paths, 0], np.int64),
            "choices": np.array([*self._choices, (0,) * 4], np.int64),
            "texts": np.frombuffer(bytes(self._texts), np.uint8),
        }

    def messages(self, records: Records) -> ByteStrings:
        """The messages of records; None where `messages` has to map the record."""
        texts, n = MessageTexts(records.values), len(records)
        starts = texts.starts.copy()
        refused = np.isin(records.offsets, list(records.oversize))
        starts[refused] = texts.ends[refused]
        keys, times_ms = records.keys, records.timestamps_ms
        n_bytes = 2 * int(texts.n_before[-1]) + n * (len(self._texts) + _ROOM)
        arrays: dict[str, NDArray[Any]] = {
            **self._tables,
            "slots": np.empty(self._n_slots, np.int64),
            "rows": np.empty(MAX_CANDIDATES * self._n_row_slots, np.int64),
            "keys": np.frombuffer(keys.buffer or b"\0", np.uint8),
            "key_starts": np.ascontiguousarray(keys.starts, np.int64),
            "key_sizes": np.ascontiguousarray(keys.sizes, np.int64),
            "to": (out := np.empty(n_bytes, np.uint8)),
            "starts": (found := np.empty(n, np.int64)),
            "sizes": (sizes := np.empty(n, np.int64)),
        }
        if times_ms is not None:
            arrays["times_ms"] = np.ascontiguousarray(times_ms, np.int64)
        struct = _Struct(
            **{name: array.ctypes.data for name, array in arrays.items()},
            end=out.ctypes.data + n_bytes,
            n_members=len(self._members),
            n_slots=self._n_slots,
            n_row_slots=self._n_row_slots,
        )
        library.BUILT.map_records(  # type: ignore[union-attr] # or there is no plan
            texts.buffer, starts.ctypes.data, texts.ends.ctypes.data, n, ctypes.byref(struct)
        )
        end = int(struct.to or 0) - out.ctypes.data
        return ByteStrings(out[:end].tobytes(), found, sizes)

    # Paths

    def _node(self, steps: Steps) -> _Node:
        """The node of a path in the record."""
        node = self._root
        for step in steps:
            if isinstance(step, int) or node.form != _ONE_VALUE:
                raise _Unplanned
            if step not in node.inner:
                node.inner[step] = _Node(self._n_slots)
                self._n_slots += 1
            node = node.inner[step]
        return node

    def _row_slot(self, steps: Steps) -> int:
        """The slot of a path in the rows, or of one of parallel arrays."""
        if self._mapping.each is None:
            node = self._node(steps)
            if node.inner:
                raise _Unplanned
            if node.form == _ONE_VALUE:
                node.form, node.row_slot = _ARRAY, self._n_row_slots
                self._n_row_slots += 1
            return node.row_slot
        node = self._rows
        for step in steps:
            if isinstance(step, int):
                raise _Unplanned
            if step not in node.inner:
                node.inner[step] = _Node(self._n_row_slots)
                self._n_row_slots += 1
            node = node.inner[step]
        return node.slot

    def _slot(self, path: Path, *, is_text: bool) -> int:
        if path.part == "value":
            return self._node(path.steps).slot
        return _OF_KEY if path.part == "key" and not path.steps and is_text else _OTHERWISE

    def _nodes(self) -> list[Sequence[int]]:
        """The nodes, so that those in one follow each other."""
        nodes, found = [("", self._root)], list[Sequence[int]]()
        for name, node in nodes:  # which grows
            first = len(nodes)
            nodes += node.inner.items()
            place = self._text(name.encode())
            found.append((*place, first, len(node.inner), node.slot, node.form, node.row_slot))
        return found

    # Members

    def _compile(self) -> None:
        mapping = self._mapping
        self._add(_FIXED, b'{"schema_version":%d' % SCHEMA_VERSION)
        is_ranking = mapping.log == "rankings"
        if not is_ranking and mapping.has_rows and mapping.rows.keys() != {"candidate_id", "grade"}:
            raise _Unplanned
        columns = self._columns()  # first: no other path may lead through an array
        for path, values in mapping.where:
            slots = [self._slot(path, is_text=False)]
            self._add(_CHOICE, b"", slots, [(encode(each), b"") for each in values], required=True)
        for paths in mapping.present:
            slots = sorted((self._slot(path, is_text=False) for path in paths), reverse=True)
            self._add(_PRESENT, b"", slots, required=True)
        for name in RANKING_HEAD if is_ranking else JUDGMENT_HEAD:
            if name in mapping.members:
                self._once(mapping.members[name], b',"%s":' % name.encode())
            elif name == "timestamp_ms":
                self._add(_RECORD_TIME, b',"timestamp_ms":')
        self._members += columns
        if is_ranking:
            self._end_of_ranking()
            return
        if mapping.has_rows:
            self._add(_FIXED, b"}")
            return
        self._add(_FIXED, b',"grades":{')
        self._once(mapping.members["candidate_id"], b",")
        self._once(mapping.members["grade"], b":")
        self._add(_FIXED, b"}}")

    def _end_of_ranking(self) -> None:
        mapping = self._mapping
        if "exposed_top" in mapping.members:
            self._once(mapping.members["exposed_top"], b',"exposed_top":')
        self._add(_OBJECT, b',"segments":{')
        for name, member in mapping.groups.get("segments", {}).items():
            self._once(member, b",%s:" % encode(name))
        self._add(_OBJECT_END, b"")
        self._add(_FIXED, b"}")

    def _columns(self) -> list[Sequence[int]]:
        """The members of the rows; without scores and ranks these are the places of the rows."""
        before, self._members = self._members, []
        rows, groups = self._mapping.rows, self._mapping.row_groups
        if self._mapping.log == "judgments":
            of_row = {name: rows[name] for name in ("candidate_id", "grade") if name in rows}
            if of_row:
                self._column(b',"grades":{', of_row, kind=_GRADES)
        for name, written in WRITTEN_NAMES if self._mapping.log == "rankings" else ():
            begin = b',"%s":[' % written.encode()
            if name in rows:
                is_optional = name in {"propensity", "exposed"}
                self._column(begin, {name: rows[name]}, required=not is_optional)
            elif name == "rank" and self._mapping.has_rows and "score" not in rows:
                self._add(_ROW_NUMBERS, begin)
            elif name == "scorers" and name in groups:
                self._add(_FIXED, b',"scorers":{')
                for at, (scorer, member) in enumerate(groups[name].items()):
                    self._column(b","[: bool(at)] + encode(scorer) + b":[", {scorer: member})
                self._add(_FIXED, b"}")
            elif name == "features" and name in groups:
                names = b',"feature_names":' + encode(list(groups[name]))
                self._column(names + begin, groups[name], is_list=True)
        columns, self._members = self._members, before
        return columns

    def _column(
        self,
        begin: bytes,
        members: Members,
        *,
        kind: int = _COLUMN,
        required: bool = True,
        is_list: bool = False,
    ) -> None:
        self._add(kind, begin, required=required, per=is_list, n_choices=len(members))
        for member in members.values():
            self._value(member, b"", [self._row_slot(path.steps) for path in member.paths])

    def _once(self, member: Member, begin: bytes) -> None:
        is_text = member.kind == TEXT and member.table is None
        self._value(member, begin, [self._slot(path, is_text=is_text) for path in member.paths])

    def _value(self, member: Member, begin: bytes, slots: Sequence[int]) -> None:
        required = member.is_required
        convert, add = converter(member), member.add
        if not member.paths:
            return self._add(_CHOICE, begin, (), [(b"", encode(member.const))])
        if member.table is not None:
            texts = {
                key: encode(convert(value) + add if add else convert(value))
                for key, value in member.table.items()
            }
            if b"null" in texts.values():  # a number that is not finite
                raise _Unplanned
            choices = [(encode(key), text) for key, text in texts.items()]
            choices += [
                (key.encode(), text) for key, text in texts.items() if _WHOLE.fullmatch(key)
            ]
            return self._add(_CHOICE, begin, slots, choices, required=required)
        kind, per = _KINDS[member.kind], 1
        if member.kind == TIME:
            kind = _ISO_TIME if member.unit == "iso" else kind
            add, per = PER_MS.get(member.unit, (1, 1))
        elif member.kind == NUMBER:
            add = int(np.float64(add).view(np.int64))
        if abs(add) > _MAX_ADD and member.kind == INTEGER:
            raise _Unplanned
        return self._add(kind, begin, slots, required=required, add=int(add), per=per)

    def _add(
        self,
        kind: int,
        text: bytes,
        slots: Sequence[int] = (),
        choices: Sequence[tuple[bytes, bytes]] = (),
        *,
        required: bool = False,
        add: int = 0,
        per: int = 0,
        n_choices: int = 0,
    ) -> None:
        """Adds a `struct member`."""
        if slots[:1] == [_OTHERWISE]:
            raise _Unplanned
        n_paths, n_texts = len(self._paths), len(self._choices)
        self._paths += slots
        self._choices += [(*self._text(raw), *self._text(text)) for raw, text in choices]
        self._members.append(
            (
                *(kind, *self._text(text), n_paths, len(slots)),
                *(n_texts, n_choices or len(choices), required, add, per),
            )
        )

    def _text(self, text: bytes) -> tuple[int, int]:
        first = len(self._texts)
        self._texts += text
        return first, len(text)

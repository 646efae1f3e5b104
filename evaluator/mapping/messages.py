"""A record to canonical messages, by the mapping of its topic."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import isfinite
from types import MappingProxyType
from typing import Any, Final

import msgspec

from evaluator.mapping.formats import reader_of
from evaluator.mapping.framing import payload_of_json
from evaluator.mapping.kinds import REQUIRED
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.members import (
    Column,
    LeavesOut,
    Need,
    RecordGetter,
    RecordRefused,
    Scalar,
    array_in,
    getter_of,
    is_one_of,
    walker,
)
from evaluator.mapping.otlp import MAX_ITEMS, items_of
from evaluator.mapping.otlp_wire import is_wire
from evaluator.mapping.paths import shown
from evaluator.mapping.record import LeftOut, Outcome, Record, bounded, joined
from evaluator.mapping.schemas import Answer
from evaluator.wire.messages.limits import SCHEMA_VERSION
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.reading import MAX_NESTING, too_deep

Message = dict[str, Any]


encode: Final = msgspec.json.Encoder().encode
"""The encoder of canonical messages. Its bytes, and the order of members below, are frozen."""


def messages_of(
    mapping: LogMapping, answers: Mapping[str, Answer] = MappingProxyType({})
) -> Callable[[Record], Outcome]:
    """The function of a record that *mapping* describes; *answers* has the schemas by id.

    Raises MappingRefused if the package of the format is missing.
    """
    if mapping.function is None:
        return _Mapper(mapping, answers)
    return partial(_of_function, mapping.function)


def _of_function(function: Callable[[Record], Iterable[Any]], record: Record) -> Outcome:
    """The messages that the function of an entry point returns."""
    try:
        messages = [encode(message) for message in function(record)]
    except Exception as error:  # noqa: BLE001  # any error of the function is the record's
        return Malformed("mapping", f"the function raised {error!r}"[:300])
    return bounded(messages) if messages else LeftOut("the function returned no message", None)


class _Mapper:
    """The messages that a mapping file describes, by plain decoded objects."""

    def __init__(self, mapping: LogMapping, answers: Mapping[str, Answer]) -> None:
        self._envelope = mapping.envelope
        self._rules = _Rules(mapping)
        self._reader = reader_of(mapping, answers)
        self._is_otlp = mapping.format == "otlp"

    def __call__(self, record: Record) -> Outcome:
        value = record.value
        if not value:
            return Malformed("decode", "the value is empty; leave it out of the topic")
        is_binary = self._envelope == "cloudevents" and record.header("ce_specversion") is not None
        if self._reader is not None:
            found = self._reader(record)
            return found if isinstance(found, Malformed) else self._mapped(found, record, is_binary)
        is_json = not (self._is_otlp and is_wire(value))
        value = payload_of_json(value) if is_json else value
        if is_json and too_deep(value):
            return Malformed("limit", f"nested more than {MAX_NESTING} deep")
        try:
            document = (
                list(islice(items_of(value), MAX_ITEMS + 1))
                if self._is_otlp
                else msgspec.json.decode(value)
            )
        except ValueError as error:  # those of msgspec are
            return Malformed("decode", f"not {'OTLP' if self._is_otlp else 'JSON'}: {error}"[:300])
        if self._is_otlp and len(document) > MAX_ITEMS:
            return Malformed("limit", f"more than {MAX_ITEMS} spans and log records")
        if self._is_otlp:
            return joined(self._mapped(each, record, is_binary) for each in document)
        return self._mapped(document, record, is_binary)

    def _mapped(self, document: Any, record: Record, is_binary: bool) -> Outcome:
        """The outcome of plain objects."""
        try:
            return self._rules.outcome(self._opened(document, record, is_binary), record)
        except RecordRefused as refused:
            return Malformed("mapping", refused.detail())
        except LeavesOut as why:
            return LeftOut(str(why), None)

    def _opened(self, document: Any, record: Record, is_binary: bool) -> Message:
        """The object that paths begin in."""
        opened = document
        if is_binary:
            names = [name.removeprefix("ce_") for name, _ in record.headers if name[:3] == "ce_"]
            opened = {name: record.header(f"ce_{name}") for name in names} | {"data": document}
        if self._envelope == "debezium" and isinstance(document, dict):
            change = document.get("payload", document)
            if not isinstance(change, dict) or "after" not in change:
                raise RecordRefused(lambda: "the record has no `after`: it is not a change event")
            opened = change["after"]
            if opened is None:
                raise LeavesOut("envelope: `after` is null, as in a delete")
        if not isinstance(opened, dict):
            raise RecordRefused(lambda: f"the record is {shown(opened)}, not an object")
        return opened


class _Rules:
    """The rules of a mapping, with getters of its paths."""

    def __init__(self, mapping: LogMapping) -> None:
        self._where = [(path, getter_of(path), values) for path, values in mapping.where]
        self._present = [([getter_of(path) for path in paths], paths) for paths in mapping.present]
        self._is_ranking = mapping.log == "rankings"
        self._row_is_message = mapping.row_is_message
        self._scalars = {name: Scalar(each) for name, each in mapping.members.items()}
        self._tables = [each for each in self._scalars.values() if each.member.table is not None]
        head = RANKING_HEAD if self._is_ranking else JUDGMENT_HEAD
        once: dict[str, RecordGetter] = {"timestamp_ms": _own_timestamp, **self._scalars}
        self._head = [(name, once[name]) for name in head if name in once]
        segments = mapping.groups.get("segments", {})
        self._segments = [(name, Scalar(each)) for name, each in segments.items()]
        self._each = None if mapping.each is None else walker(mapping.each.steps)
        self._each_steps = () if mapping.each is None else mapping.each.steps
        column = partial(Column, each=mapping.each)
        self._columns = {name: column(each) for name, each in mapping.rows.items()}
        self._needs = [
            (name, each, _NEEDS.get(name, "all or none")) for name, each in self._columns.items()
        ]
        groups = mapping.row_groups
        self._features, self._scorers = (
            {name: column(each) for name, each in groups.get(group, {}).items()}
            for group in ("features", "scorers")
        )

    def outcome(self, root: Any, record: Record) -> Outcome:
        """The messages of a decoded record. Raises RecordRefused."""
        try:
            for path, get, values in self._where:
                value = get(root, record)
                if not is_one_of(value, values):
                    is_there = "missing" if value is None else shown(value)
                    raise LeavesOut(f"where: {path.text} is {is_there}")
            for gets, paths in self._present:
                if all(get(root, record) is None for get in gets):
                    raise LeavesOut(f"present: no {' or '.join(path.text for path in paths)}")
            for scalar in self._tables:  # they leave out before anything is refused
                scalar(root, record)
            if self._is_ranking:
                return [_encoded(self._ranking(root, record))]
            return bounded(map(_encoded, self._judgments(root, record)))
        except LeavesOut as why:
            return LeftOut(str(why), self._time_of_left_out(root, record))
        except RecordRefused as first:
            refusal = first  # the name of the clause is unset at its end
            raise RecordRefused(lambda: self._refusals(refusal, root, record)) from None

    def _refusals(self, first: RecordRefused, root: Any, record: Record) -> str:
        """Reasons of a refusal, also of members that were not read after the first one."""
        found = [first.detail()]
        for scalar in self._scalars.values():
            try:
                scalar(root, record)
            except LeavesOut:
                continue
            except RecordRefused as refused:
                found.append(refused.detail())
        return ". ".join(dict.fromkeys(found))

    def _time_of_left_out(self, root: Any, record: Record) -> int | None:
        timestamp = self._scalars.get("timestamp_ms")
        try:
            return None if timestamp is None else timestamp(root, record)
        except (RecordRefused, LeavesOut):
            return None

    def _begun(self, root: Any, record: Record) -> Message:
        """The members of a message that no row has, in their order."""
        message: Message = {"schema_version": SCHEMA_VERSION}
        for name, get in self._head:
            value = get(root, record)
            if value is not None:
                message[name] = value
        return message

    def _rows(self, root: Any) -> list[Any]:
        """The elements that are rows; of parallel arrays none."""
        rows = [] if self._each is None else self._each(root)
        if isinstance(rows, str):
            rows = array_in(rows)
        if not isinstance(rows, list):
            raise RecordRefused.at("rows.each", root, self._each_steps, "an array")
        return rows

    def _count(self, root: Any, rows: list[Any]) -> int:
        """The number of rows; parallel arrays must have as many elements."""
        n = self._columns["candidate_id"].count(root, rows)
        if self._each is None:
            for column in (
                *self._columns.values(),
                *self._features.values(),
                *self._scorers.values(),
            ):
                column.check_length(root, n)
        return n

    # Rankings

    def _ranking(self, root: Any, record: Record) -> Message:
        message, rows = self._begun(root, record), self._rows(root)
        picked = range(self._count(root, rows))
        of: Message = {
            name: column.values(root, rows, picked, need) for name, column, need in self._needs
        }
        if of.get("score") is None and of.get("rank") is None:
            given = next((self._columns[name] for name in ("score", "rank") if name in of), None)
            if given is not None:
                given.values(root, rows, picked, "every")  # refuses, unless there is no row
            of["rank"] = list(range(1, len(picked) + 1))
        if self._scorers:
            of["scorers"] = self._group(self._scorers, root, rows, picked)
        if self._features:
            features = self._group(self._features, root, rows, picked) or {}
            of["feature_names"] = list(features) or None
            of["features"] = list(zip(*features.values(), strict=True)) or None
        if "exposed_top" in self._scalars:
            of["exposed_top"] = self._scalars["exposed_top"](root, record)
        if self._segments:
            levels = [(name, each(root, record)) for name, each in self._segments]
            of["segments"] = {name: level for name, level in levels if level is not None} or None
        for name, written in WRITTEN_NAMES:
            if (value := of.get(name)) is not None:
                message[written] = value
        return message

    def _group(
        self, columns: Mapping[str, Column], root: Any, rows: list[Any], picked: Sequence[int]
    ) -> dict[str, Any] | None:
        """The columns of a group by name, in the order of the file: all of them or none."""
        found = {
            name: each.values(root, rows, picked, "all or none") for name, each in columns.items()
        }
        if None not in found.values():
            return found or None
        if any(each is not None for each in found.values()):
            for column in columns.values():
                column.values(root, rows, picked, "every")  # refuses
        return None

    # Judgments

    def _judgments(self, root: Any, record: Record) -> Iterator[Message]:
        rows = self._rows(root)
        picked: Sequence[int] = ()
        columns: dict[str, list[Any]] = {}
        if self._columns:
            picked = self._picked(root, rows)
            for name, column in self._columns.items():
                need: Need = "every" if name in REQUIRED else "any"
                columns[name] = column.values(root, rows, picked, need) or []
        head = self._begun(root, record)
        ids = columns.get("candidate_id") or [self._scalars["candidate_id"](root, record)]
        grades = columns.get("grade") or [self._scalars["grade"](root, record)] * len(ids)
        if not self._row_is_message:
            yield {**head, "grades": dict(zip(ids, grades, strict=True))}
            return
        for at, (candidate_id, grade) in enumerate(zip(ids, grades, strict=True)):
            of_row: Message = {name: columns[name][at] for name in JUDGMENT_HEAD if name in columns}
            message = {
                name: of_row.get(name, head.get(name))
                for name in ("schema_version", *JUDGMENT_HEAD)
            }
            message = {name: value for name, value in message.items() if value is not None}
            yield {**message, "grades": {candidate_id: grade}}

    def _picked(self, root: Any, rows: list[Any]) -> Sequence[int]:
        """The rows that no table leaves out. Raises LeavesOut if there are none."""
        n = self._count(root, rows)
        picked: Sequence[int] = range(n)
        for column in self._columns.values():
            if column.member.table is not None:
                inside = set(column.in_table(root, rows, n))
                picked = [at for at in picked if at in inside]
        if not picked:
            raise LeavesOut("rows: no row" + (" is in the tables" if n else ""))
        return picked


def _own_timestamp(_: Any, record: Record) -> int | None:
    return record.timestamp_ms


RANKING_HEAD: Final = ("trace_id", "node_id", "timestamp_ms", "model", "variant", "query")
JUDGMENT_HEAD: Final = ("trace_id", "node_id", "timestamp_ms", "source", "judgment_id")
_NEEDS: Final[Mapping[str, Need]] = {"candidate_id": "every", "published_ms": "any"}
WRITTEN_NAMES: Final = (
    ("candidate_id", "candidate_ids"),
    ("score", "scores"),
    ("rank", "ranks"),
    ("scorers", "scorers"),
    ("feature_names", "feature_names"),
    ("features", "features"),
    ("published_ms", "published_ms"),
    ("propensity", "propensities"),
    ("exposed", "exposed"),
    ("exposed_top", "exposed_top"),
    ("segments", "segments"),
)
"""Members of the rows, and their names in a message, in the order of the message."""


def _encoded(message: Message) -> bytes:
    """The bytes of a message. Raises RecordRefused for NaN and infinities, which are not JSON."""
    try:
        text = encode(message)
    except ValueError:  # Python limits the digits
        raise RecordRefused(lambda: "an integer has too many digits") from None
    if b"null" in text and _has_non_finite(message):
        raise RecordRefused(lambda: "a number is not finite")
    return text


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return any(map(_has_non_finite, inner))
    return isinstance(value, float) and not isfinite(value)

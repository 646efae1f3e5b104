"""Types of the Protobuf fields that paths name, beside what the members of a mapping take."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf import wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from evaluator.mapping.kinds import BOOLEAN, INTEGER, NUMBER, TEXT, TIME
from evaluator.mapping.log_mapping import LogMapping, Member
from evaluator.mapping.paths import Path, Step, written
from evaluator.mapping.schemas import SchemaUnusable

Messages = Mapping[str, tuple[Any, Any]]
"""The messages of a schema by name, each with its file."""

_FLOATS: Final = frozenset({"float", "double"})
_INTEGERS: Final = frozenset(
    f"{form}{bits}" for form in ("int", "uint", "sint", "fixed", "sfixed") for bits in (32, 64)
)
_TAKES: Final = {
    TEXT: _INTEGERS | {"string", "enum"},
    NUMBER: _INTEGERS | _FLOATS,
    INTEGER: _INTEGERS,
    BOOLEAN: {"bool"},
    TIME: _INTEGERS | _FLOATS | {"string"},
}
_IN_TABLES: Final = _INTEGERS | {"string", "enum", "bool"}
TIMESTAMP: Final = ".google.protobuf.Timestamp"
WRAPPERS: Final = {
    f".google.protobuf.{name}" for name in wrappers_pb2.DESCRIPTOR.message_types_by_name
}


def require_types(mapping: LogMapping, root: str, messages: Messages) -> None:
    """Refuses a path of a member that never finds what it takes. Raises SchemaUnusable.

    Args:
        mapping: its paths name fields that exist.
        root: the message that paths begin in.
        messages: those of the schema.
    """
    of = _Fields(root, messages)
    before: tuple[Step, ...] = ("after",) if mapping.envelope == "debezium" else ()
    for member, path in _in_value(mapping.of_record()):
        of.require(member, path, before, is_array=False)
    rows = before
    if mapping.each is not None:
        kind, is_array = of.found((*before, *mapping.each.steps))
        if kind == "string" and not is_array:
            return  # a text of JSON
        if not is_array:
            raise SchemaUnusable(f"rows.each: {mapping.each.text} is {kind}; needed: repeated")
        rows = (*before, *mapping.each.steps, 0)
    for member, path in _in_value(mapping.of_rows()):
        of.require(member, path, rows, is_array=mapping.each is None)


def _in_value(members: Sequence[Member]) -> Iterator[tuple[Member, Path]]:
    return ((each, path) for each in members for path in each.paths if path.part == "value")


class _Fields:
    """The fields of a message, by their paths."""

    def __init__(self, root: str, messages: Messages) -> None:
        self._root, self._messages = root, messages

    def found(self, steps: Sequence[Step]) -> tuple[str, bool]:
        """The type of what a path finds, and whether it is repeated. Raises SchemaUnusable."""
        kind, is_array, field = self._root, False, None
        for at, step in enumerate(steps):
            if isinstance(step, int) and is_array:
                is_array = False
                continue
            if is_array or isinstance(step, int):
                what = "repeated; needed: an index" if is_array else "not repeated"
                raise SchemaUnusable(f"{written(steps)}: {written(steps[:at])} is {what}")
            message = self._messages[kind][0]
            name = "value" if message.options.map_entry else step
            field = next(each for each in message.field if each.name == name)
            is_array = field.label == FieldDescriptorProto.LABEL_REPEATED
            is_message = field.type == FieldDescriptorProto.TYPE_MESSAGE
            kind = field.type_name if is_message else _name(field)
            is_map = is_message and self._messages[kind][0].options.map_entry
            is_array = is_array and not is_map
        return kind, is_array

    def require(
        self, member: Member, path: Path, before: Sequence[Step], *, is_array: bool
    ) -> None:
        """Refuses a path of a member. Raises SchemaUnusable."""
        kind, found_array = self.found((*before, *path.steps))
        takes, needed = _TAKES[member.kind], member.kind
        if member.kind == TIME and member.unit == "iso":
            takes, needed = {"string"}, "a text in ISO 8601, or another unit"
        if member.table is not None:
            takes, needed = _IN_TABLES, "a text, an integer, an enum or a boolean for its table"
        plain = kind
        if kind in WRAPPERS:
            plain = _name(self._messages[kind][0].field[0])
        if kind == TIMESTAMP and member.kind == TIME:
            plain, needed = "int64", 'unit = "ns", which is its form here'
            takes = takes if member.unit == "ns" else frozenset()
        if found_array == is_array and plain in takes:
            return
        shown = f"{'repeated ' if found_array else ''}{kind.removeprefix('.')}"
        needed = f"{needed}, repeated" if is_array else needed
        raise SchemaUnusable(f"{member.name}: {path.text} is {shown}; needed: {needed}")


def _name(field: Any) -> str:
    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()

"""Types of the Protobuf fields that paths name, and their check against a mapping."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf import wrappers_pb2
from google.protobuf.descriptor_pb2 import FeatureSet, FieldDescriptorProto

from evaluator.mapping.fitting import Type, misfit, refusal
from evaluator.mapping.log_mapping import LogMapping, Member
from evaluator.mapping.paths import Step, written
from evaluator.mapping.schemas import SchemaUnusable

Messages = Mapping[str, tuple[Any, Any]]
"""The messages of a schema by name, each with its file."""

TIMESTAMP: Final = ".google.protobuf.Timestamp"
WRAPPERS: Final = {
    f".google.protobuf.{name}" for name in wrappers_pb2.DESCRIPTOR.message_types_by_name
}


def require_types(mapping: LogMapping, root: str, messages: Messages) -> None:
    """Refuses a path with a type that its member never takes. Raises SchemaUnusable.

    Paths begin in the message *root*, and name fields that exist.
    """
    of = _Fields(root, messages)
    before: tuple[Step, ...] = ("after",) if mapping.envelope == "debezium" else ()
    of.require(mapping.of_record(), before, is_array=False)
    rows = before
    if mapping.each is not None:
        kind, is_array = of.found((*before, *mapping.each.steps))
        if kind == "string" and not is_array:
            return  # a text of JSON
        if not is_array:
            raise SchemaUnusable(f"rows.each: {mapping.each.text} is {kind}; needed: repeated")
        rows = (*before, *mapping.each.steps, 0)
    of.require(mapping.of_rows(), rows, is_array=mapping.each is None)


def unfit(mapping: LogMapping, root: str, messages: Messages) -> str | None:
    """The first member that no record of a message can give; its fields may be fewer."""
    of = _Fields(root, messages)

    def types_at(steps: Sequence[Step]) -> Sequence[Type]:
        try:
            kind, is_array = of.found(steps)
        except (SchemaUnusable, LookupError, StopIteration):  # no such field
            return ()
        return ((of.plain(kind), is_array),)

    return misfit(mapping, types_at)


class _Fields:
    """The fields of a message, by their paths."""

    def __init__(self, root: str, messages: Messages) -> None:
        self._root, self._messages = root, messages

    def found(self, steps: Sequence[Step]) -> tuple[str, bool]:
        """The type that a path finds, and whether it is repeated. Raises SchemaUnusable."""
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

    def plain(self, kind: str) -> str:
        """The type of a value, which a wrapper has inside."""
        if kind in WRAPPERS:
            return _name(self._messages[kind][0].field[0])
        return kind.removeprefix(".")

    def require(self, members: Sequence[Member], before: Sequence[Step], *, is_array: bool) -> None:
        """Refuses a path of these members. Raises SchemaUnusable."""
        for member, path in ((each, path) for each in members for path in each.paths):
            if path.part == "value":
                kind, found_array = self.found((*before, *path.steps))
                found = self.plain(kind), found_array
                why = refusal(member, path, found, is_array=is_array, named=kind)
                if why is not None:
                    raise SchemaUnusable(why)


def _name(field: Any) -> str:
    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def has_presence(field: Any, file: Any) -> bool:
    """Whether a field can be missing; otherwise it then has its default."""
    if field.type == FieldDescriptorProto.TYPE_MESSAGE or field.HasField("oneof_index"):
        return True
    if file.syntax != "editions":
        return str(file.syntax) != "proto3"
    given = field.options.features if field.options.features.HasField("field_presence") else None
    features = given or file.options.features
    return bool(features.field_presence != FeatureSet.IMPLICIT)


def is_delimited(field: Any, file: Any) -> bool:
    """Whether a message is written as a group (editions)."""
    own = field.options.features
    features = own if own.HasField("message_encoding") else file.options.features
    encoding = features.message_encoding
    return bool(field.type == FieldDescriptorProto.TYPE_MESSAGE and encoding == features.DELIMITED)

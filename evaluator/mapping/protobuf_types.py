"""The message types that paths name, the decoder of their records, and its tables.

A message type is made of the named fields alone; other bytes of a record are not decoded. So the
cost of a record depends on the mapping, not on its schema: recursive types, unused imports and
options do no harm.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError

from evaluator.mapping.field_types import TIMESTAMP, WRAPPERS, has_presence, is_delimited
from evaluator.mapping.framed_texts import PRESENCE, REPEATED, WANTED, Part, Tables
from evaluator.mapping.members import Tree, merge
from evaluator.mapping.schemas import SchemaUnusable
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.reading import MAX_NESTING

MAX_ELEMENTS: Final = 100_000
"""Most elements of repeated fields in a record."""
MAX_PARTS: Final = 1_000
"""Most fields of a message, and symbols of an enum, that the compiled part reads."""

_File = descriptor_pb2.FileDescriptorProto
_Field = descriptor_pb2.FieldDescriptorProto
_WELL_KNOWN: Final = (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
Proto = Any
"""A descriptor: the package has no types."""
Decode = Callable[[bytes], Any]

# `enum protobuf_kind` of protobuf.h, wire types, and bits
_SIGNED, _UNSIGNED, _ZIGZAG, _BOOL, _REAL, _ENUM, _STRING, _BYTES = range(8)
_MESSAGE, _TIMESTAMP, _WRAPPER, _MAP = range(8, 12)
_VARINT, _FIXED_64, _SIZED, _FIXED_32 = 0, 1, 2, 5
_SCALARS: Final = {
    _Field.TYPE_INT32: (_SIGNED, _VARINT, 32),
    _Field.TYPE_INT64: (_SIGNED, _VARINT, 64),
    _Field.TYPE_UINT32: (_UNSIGNED, _VARINT, 32),
    _Field.TYPE_UINT64: (_UNSIGNED, _VARINT, 64),
    _Field.TYPE_SINT32: (_ZIGZAG, _VARINT, 32),
    _Field.TYPE_SINT64: (_ZIGZAG, _VARINT, 64),
    _Field.TYPE_BOOL: (_BOOL, _VARINT, 0),
    _Field.TYPE_FIXED32: (_UNSIGNED, _FIXED_32, 32),
    _Field.TYPE_SFIXED32: (_SIGNED, _FIXED_32, 32),
    _Field.TYPE_FLOAT: (_REAL, _FIXED_32, 32),
    _Field.TYPE_FIXED64: (_UNSIGNED, _FIXED_64, 64),
    _Field.TYPE_SFIXED64: (_SIGNED, _FIXED_64, 64),
    _Field.TYPE_DOUBLE: (_REAL, _FIXED_64, 64),
    _Field.TYPE_STRING: (_STRING, _SIZED, 0),
    _Field.TYPE_BYTES: (_BYTES, _SIZED, 0),
}
_OF_ONEOF: Final = 1 << 62  # the number of no field
_PLAIN: Final = re.compile(r'[^\x00-\x1f"\\]*')


@contextmanager
def accepted(otherwise: str) -> Iterator[None]:
    """Converts any error of the package to SchemaUnusable."""
    try:
        yield
    except SchemaUnusable:
        raise
    except Exception as error:
        raise SchemaUnusable(otherwise) from error


class _TooMany(Exception):
    """A record has more than MAX_ELEMENTS elements."""


class Types:
    """The messages and enums of some files."""

    def __init__(self, files: Sequence[Proto]) -> None:
        self.messages: dict[str, tuple[Proto, Proto]] = {}
        self.enums: dict[str, dict[int, str]] = {}
        known = [_File.FromString(each.DESCRIPTOR.serialized_pb) for each in _WELL_KNOWN]
        for file in (*files, *known):  # so these have their own fields
            before = f".{file.package}" if file.package else ""
            self._add(before, file.message_type, file.enum_type, file)

    def _add(self, before: str, messages: Any, enums: Any, file: Proto) -> None:
        for message in messages:
            name = f"{before}.{message.name}"
            self.messages[name] = (message, file)
            self._add(name, message.nested_type, message.enum_type, file)
        for enum in enums:
            symbols = {each.number: each.name for each in reversed(enum.value)}
            self.enums[f"{before}.{enum.name}"] = symbols

    def decoder(self, name: str, tree: Tree, *, is_strict: bool) -> tuple[Decode, Tables | None]:
        """The decoder of a message, and its tables if the compiled part reads it.

        If *is_strict*, each path has to exist. Raises SchemaUnusable.
        """
        with accepted(f"{name[1:]} is not accepted by the protobuf package"):
            made = _Made(self.messages, self.enums, is_strict=is_strict)
            root, text, made.tables.root = made.message(name, tree, "m", 0)
            pool = descriptor_pool.DescriptorPool()
            pool.AddSerializedFile(made.file.SerializeToString())
            message = message_factory.GetMessageClass(pool.FindMessageTypeByName(root[1:]))
        n_elements = 0

        def few(values: Collection[Any]) -> Collection[Any]:
            nonlocal n_elements
            n_elements += len(values)
            if n_elements > MAX_ELEMENTS:
                raise _TooMany
            return values

        read = eval(f"lambda m: {text}", {"few": few, "key": _key, **made.names})  # noqa: S307 - generated names

        def decode(payload: bytes) -> Any:
            nonlocal n_elements
            n_elements = 0
            try:
                return read(message.FromString(payload))
            except DecodeError:
                return Malformed("decode", f"the bytes are not a message {name[1:]}"[:200])
            except _TooMany:
                return Malformed("limit", f"more than {MAX_ELEMENTS} elements of repeated fields")

        return decode, made.tables if made.is_compiled else None


def _key(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Made:
    """The message types of one decoder, the expressions that read them, and their tables.

    A field has its number as its name, so that no name of a schema is in an expression.
    """

    def __init__(
        self,
        messages: Mapping[str, tuple[Proto, Proto]],
        enums: Mapping[str, dict[int, str]],
        *,
        is_strict: bool,
    ) -> None:
        self.file = _File(
            name="mapping.proto", syntax="editions", edition=descriptor_pb2.EDITION_2023
        )
        self.names: dict[str, dict[int, str]] = {}
        self.tables, self.is_compiled = Tables(is_protobuf=True), True
        self._messages, self._enums, self._is_strict = messages, enums, is_strict

    def message(
        self, name: str, tree: Tree, at: str, depth: int, kind: int = _MESSAGE
    ) -> tuple[str, str, int]:
        """A type of the fields in *tree*, the expression of its value in *at*, and its number."""
        if name not in self._messages:
            raise SchemaUnusable(f"{name.removeprefix('.')[:100]} is not in the descriptors")
        if depth > MAX_NESTING:
            raise SchemaUnusable(f"a path is more than {MAX_NESTING} deep")
        message, file = self._messages[name]
        made, parts = self._new(), list[Part]()
        fields = {field.name: field for field in message.field}
        texts: list[str] = []
        for step, inner in tree.items():
            if step in fields:
                text, part = self._value(made, fields[step], file, inner, (at, depth))
                texts.append(f"{step!r}: {text}")
                parts.append(part)
            elif self._is_strict:
                near = difflib.get_close_matches(step, fields, n=1) or list(fields)[:10]
                raise SchemaUnusable(f"{name[1:]} has no field {step}; it has {', '.join(near)}")
        _complete(made, message)
        return f".{made.name}", f"{{{', '.join(texts)}}}", self._numbered(kind, made, parts)

    def _new(self) -> Proto:
        return self.file.message_type.add(name=f"M{len(self.file.message_type)}")

    def _numbered(self, kind: int, made: Proto, parts: list[Part]) -> int:
        """The number of a message type; to *parts* come the other members of each oneof."""
        n, named = len(made.field), {part.number for part in parts}
        self.is_compiled &= n <= MAX_PARTS
        in_oneofs = [each for each in made.field if each.HasField("oneof_index")]
        oneofs = {each.number: n + each.oneof_index for each in in_oneofs}
        others = [each for each in made.field if each.number not in named]
        parts += [Part("", self._scalar(each.type), number=each.number) for each in others]
        parts = [part._replace(oneof=oneofs.get(part.number, 0)) for part in parts]
        owner = Part("", self._scalar(_Field.TYPE_BYTES), number=_OF_ONEOF)
        return self.tables.add(kind, [*parts, *[owner] * len(made.oneof_decl)], wire=_SIZED)

    def _scalar(self, kind: int) -> int:
        of, wire, bits = _SCALARS[kind]
        return self.tables.add(of, (), bits, wire=wire)

    def _value(
        self, made: Proto, field: Proto, file: Proto, inner: Tree, place: tuple[str, int]
    ) -> tuple[str, Part]:
        """Declares a field, and returns the expression of its value, and its part."""
        (at, depth), number, name = place, field.number, field.name
        value, element = f"{at}.f{number}", f"e{depth}"
        if is_delimited(field, file):
            raise SchemaUnusable(f"{field.name[:100]} is delimited, which is not supported")
        declared = _declared(made, field)
        if field.label != _Field.LABEL_REPEATED:
            text, kind = self._plain(declared, field, inner, (value, depth + 1))
            if has_presence(field, file):
                text = f"{text} if {at}.HasField('f{number}') else None"
                return text, Part(name, kind, WANTED | PRESENCE, number)
            text = f"{text} or None" if field.type == _Field.TYPE_STRING else text
            return text, Part(name, kind, WANTED, number)
        entry = self._messages[field.type_name][0] if field.type_name in self._messages else None
        if entry is None or not entry.options.map_entry:
            text, kind = self._plain(declared, field, inner, (element, depth + 1))
            text = f"[{text} for {element} in few({value})]"
            return text, Part(name, kind, WANTED | REPEATED, number)
        wanted: Tree = {}
        for below in inner.values():
            merge(wanted, below)
        pair = self._new()
        declared.type_name = f".{pair.name}"
        plain = [
            self._plain(_declared(pair, each), each, tree, (f"{element}.f{each.number}", depth + 1))
            for each, tree in zip(entry.field, ({}, wanted), strict=False)  # a key and a value
        ]
        if len(plain) != 2:
            raise SchemaUnusable(f"{field.name[:100]} is not a map")
        (key, _), (text, _) = plain
        wants = f"if key({key}) in {tuple(inner)!r}"
        text = f"{{key({key}): {text} for {element} in few({value}) {wants}}}"
        of_entry = [kind for _, kind in plain]
        return text, Part(name, self._map(entry, of_entry, inner), WANTED | REPEATED, number)

    def _map(self, entry: Proto, kinds: Sequence[int], names: Collection[str]) -> int:
        """The type of a map whose key and value have these types."""
        of_key = _SCALARS.get(entry.field[0].type, (_REAL,))[0]
        fields = [(each.number, each.label) for each in entry.field]
        is_plain = fields == [(1, _Field.LABEL_OPTIONAL), (2, _Field.LABEL_OPTIONAL)]
        is_plain &= of_key < _REAL or of_key == _STRING
        self.is_compiled &= is_plain and all(map(_PLAIN.fullmatch, names))
        pair = [Part("", kind, number=number) for number, kind in enumerate(kinds, 1)]
        parts = [Part("", self.tables.add(_MESSAGE, pair, wire=_SIZED))]
        parts += [Part(name, 0, WANTED) for name in names]
        return self.tables.add(_MAP, parts, wire=_SIZED)

    def _plain(
        self, declared: Proto, field: Proto, inner: Tree, place: tuple[str, int]
    ) -> tuple[str, int]:
        """The expression of a value at *place* that is there, and its type; declares it too."""
        (at, depth), kind = place, field.type_name
        if field.type == _Field.TYPE_GROUP:
            raise SchemaUnusable(f"{field.name[:100]} is a group, which is not supported")
        if field.type != _Field.TYPE_MESSAGE:
            if inner and self._is_strict:
                raise SchemaUnusable(f"{field.name} is not a message, so it has no {min(inner)}")
            self.is_compiled &= field.type != _Field.TYPE_BYTES
            if field.type != _Field.TYPE_ENUM:
                return at, self._scalar(field.type)
            symbols = f"symbols{len(self.names)}"
            of = self.names[symbols] = self._enums.get(kind, {})
            parts = [Part(name, 0, number=number) for number, name in of.items()]
            self.is_compiled &= len(of) <= MAX_PARTS
            return f"{symbols}.get({at}, {at})", self.tables.add(_ENUM, parts)
        if inner:
            declared.type_name, text, number = self.message(kind, inner, at, depth)
        elif kind == TIMESTAMP:
            tree: Tree = {"seconds": {}, "nanos": {}}
            declared.type_name, _, number = self.message(kind, tree, at, depth, _TIMESTAMP)
            text = f"({at}.f1 * 1000000000 + {at}.f2)"
        elif kind in WRAPPERS:
            tree = {"value": {}}
            declared.type_name, _, number = self.message(kind, tree, at, depth, _WRAPPER)
            text = f"{at}.f1"
        else:
            text, number = "{}", self.tables.add(_MESSAGE, (), wire=_SIZED)
            declared.type_name = f".{self._new().name}"
        return text, number


def _declared(made: Proto, field: Proto, *, is_needed: bool = True) -> Proto:
    """The field in a type that is made; one that is not needed keeps its bytes."""
    kind = field.type
    if kind == _Field.TYPE_ENUM:
        kind = _Field.TYPE_INT32
    elif not is_needed and kind in {_Field.TYPE_MESSAGE, _Field.TYPE_STRING}:
        kind = _Field.TYPE_BYTES
    is_repeated = field.label == _Field.LABEL_REPEATED
    label = _Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL
    return made.field.add(name=f"f{field.number}", number=field.number, label=label, type=kind)


def _complete(made: Proto, message: Proto) -> None:
    """Adds the other members of each oneof: the last one in a record removes the others."""
    in_oneof = {
        field.number: field.oneof_index
        for field in message.field
        if field.HasField("oneof_index") and not field.proto3_optional
    }
    declared = {field.number: field for field in made.field}
    places: dict[int, int] = {}
    for number in declared:
        if number in in_oneof and in_oneof[number] not in places:
            places[in_oneof[number]] = len(places)
            made.oneof_decl.add(name=f"o{in_oneof[number]}")
    for field in message.field:
        if in_oneof.get(field.number) in places and field.type != _Field.TYPE_GROUP:
            member = declared.get(field.number) or _declared(made, field, is_needed=False)
            member.oneof_index = places[in_oneof[field.number]]

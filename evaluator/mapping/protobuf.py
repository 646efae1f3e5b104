"""Protobuf: the fields that a mapping names, decoded to plain objects.

A message type is made of the named fields alone; other bytes of a record are not decoded. So what a
record costs depends on the mapping, not on its schema: recursive types, unused imports and options
do no harm.
"""

import difflib
from base64 import b64decode
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

from evaluator.mapping.field_types import TIMESTAMP, WRAPPERS, require_types
from evaluator.mapping.field_types import unfit as unfit_message
from evaluator.mapping.framing import HEADER, frame_of
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.members import Tree, tree_of
from evaluator.mapping.record import Record
from evaluator.mapping.schemas import Answer, SchemaUnusable
from evaluator.wire.messages.strict import Malformed
from evaluator.wire.reading import MAX_NESTING

MAX_ELEMENTS: Final = 100_000
"""Most elements of repeated fields in a record."""

_File = descriptor_pb2.FileDescriptorProto
_Message = descriptor_pb2.DescriptorProto
_Field = descriptor_pb2.FieldDescriptorProto
_WELL_KNOWN: Final = (duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
Proto = Any
"""A descriptor: the package has no types."""
Decode = Callable[[bytes], Any]


def compiled(answer: Answer, mapping: LogMapping) -> Decode:
    """The decoder of a schema: of message indexes and the message. Raises SchemaUnusable."""
    types, indexes_of = _types_of(answer)
    names, tree = {at: name for name, at in indexes_of.items()}, tree_of(mapping)
    decoders: dict[tuple[int, ...], Decode] = {}

    def decode(payload: bytes) -> Any:
        split = _split(payload)
        if split is None:
            return Malformed("decode", "the frame has no message indexes")
        indexes, value = split
        found = decoders.get(indexes)
        if found is None:
            if indexes not in names:
                return Malformed("decode", f"the schema has no message {list(indexes)}"[:100])
            try:
                found = types.decoder(names[indexes], tree, is_strict=False)
            except SchemaUnusable as unusable:
                letter = Malformed("registry", str(unusable)[:200])
                found = lambda _: letter  # noqa: E731 - a decoder of refusals
            decoders[indexes] = found
        return found(value)

    return decode


def unfit(answer: Answer, mapping: LogMapping) -> str | None:
    """Why no message of a schema can give what is needed: of the nearest. Raises SchemaUnusable."""
    types, indexes_of = _types_of(answer)
    tree = tree_of(mapping)
    whys: list[tuple[int, str]] = []
    with _accepted("has fields without a type"):
        for name in indexes_of:
            why = unfit_message(mapping, name, types.messages)
            if why is None:
                return None
            n_named = sum(field.name in tree for field in types.messages[name][0].field)
            whys.append((n_named, f"{name[1:]}: {why}"))
    return max(whys)[1] if whys else "has no message"


def _types_of(answer: Answer) -> "tuple[_Types, dict[str, tuple[int, ...]]]":
    """The types of a schema, and the indexes of its messages. Raises SchemaUnusable."""
    if answer.kind != "PROTOBUF":
        raise SchemaUnusable(f"is of type {answer.kind}, not PROTOBUF")
    with _accepted("is no serialized descriptor"):
        texts = [text for _, text in (*answer.references, ("", answer.schema))]
        files = [_File.FromString(b64decode(text, validate=True)) for text in texts]
        return _Types(files), _indexes_of(files[-1])


def reader(mapping: LogMapping) -> Callable[[Record], Any]:
    """The decoder of records by a descriptor set, framed or not. Raises SchemaUnusable."""
    known: dict[str, tuple[int, ...]] = {}
    with _accepted("descriptor_set is no file of protoc --descriptor_set_out"):
        files = descriptor_pb2.FileDescriptorSet.FromString(mapping.descriptors or b"").file
        for file in files:
            known |= _indexes_of(file)
        types = _Types(files)
    name = f".{mapping.message}"
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or list(known)[:10]
        names = ", ".join(each.removeprefix(".") for each in near)
        raise SchemaUnusable(f"descriptor_set has no message {mapping.message}; it has {names}")
    decode = types.decoder(name, tree_of(mapping), is_strict=True)
    with _accepted("descriptor_set has fields without a type"):
        require_types(mapping, name, types.messages)

    def read(record: Record) -> Any:
        value = record.value
        if value[:1] > b"\x01" and all(header != HEADER for header, _ in record.headers):
            return decode(value)  # a message cannot begin with the field 0
        frame = frame_of(record, has_indexes=True)
        if isinstance(frame, Malformed):
            return frame
        split = _split(frame.payload)
        if split is None or split[0] != known[name]:
            what = "no message indexes" if split is None else f"the message {list(split[0])}"
            needed = f"{mapping.message} is {list(known[name])}"
            return Malformed("decode", f"the frame has {what}; {needed}"[:200])
        return decode(split[1])

    return read


@contextmanager
def _accepted(otherwise: str) -> Iterator[None]:
    """Converts any error of the package to SchemaUnusable."""
    try:
        yield
    except SchemaUnusable:
        raise
    except Exception as error:
        raise SchemaUnusable(otherwise) from error


def _split(payload: bytes) -> tuple[tuple[int, ...], bytes] | None:
    """The indexes of a message in its schema, and the bytes after them."""
    numbers: list[int] = []
    at = n = 0
    while len(numbers) <= n:
        number = shift = 0
        while True:
            if at >= len(payload) or shift > 28:
                return None
            number |= (payload[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if payload[at - 1] < 0x80:
                break
        numbers.append(number >> 1)  # zig-zag; negative ones are no index
        if number & 1 or numbers[0] > MAX_NESTING:
            return None
        n = numbers[0]
    return tuple(numbers[1:]) or (0,), payload[at:]


def _indexes_of(file: Proto) -> dict[str, tuple[int, ...]]:
    """The messages of a file by name, with a dot before it, and where they are in it."""
    found: dict[str, tuple[int, ...]] = {}

    def add(before: str, messages: Sequence[Proto], at: tuple[int, ...]) -> None:
        for n, message in enumerate(messages):
            found[f"{before}.{message.name}"] = (*at, n)
            add(f"{before}.{message.name}", message.nested_type, (*at, n))

    add(f".{file.package}" if file.package else "", file.message_type, ())
    return found


class _TooMany(Exception):
    """A record has more than MAX_ELEMENTS elements."""


class _Types:
    """The messages and enums of some files."""

    def __init__(self, files: Sequence[Proto]) -> None:
        self.messages: dict[str, tuple[Proto, Proto]] = {}
        self._enums: dict[str, dict[int, str]] = {}
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
            self._enums[f"{before}.{enum.name}"] = symbols

    def decoder(self, name: str, tree: Tree, *, is_strict: bool) -> Decode:
        """The decoder of a message; if *is_strict*, each path has to exist.

        Raises SchemaUnusable.
        """
        with _accepted(f"{name[1:]} is not accepted by the protobuf package"):
            made = _Made(self.messages, self._enums, is_strict=is_strict)
            root, text = made.message(name, tree, "m", 0)
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
                return Malformed("decode", f"the bytes are no {name[1:]}"[:200])
            except _TooMany:
                return Malformed("limit", f"more than {MAX_ELEMENTS} elements of repeated fields")

        return decode


def _key(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Made:
    """The message types of one decoder, and the expressions that read them.

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
        self._messages, self._enums, self._is_strict = messages, enums, is_strict

    def message(self, name: str, tree: Tree, at: str, depth: int) -> tuple[str, str]:
        """A type of the fields in *tree*, and the expression of what *at* has of it."""
        if name not in self._messages:
            raise SchemaUnusable(f"{name.removeprefix('.')[:100]} is not in the descriptors")
        if depth > MAX_NESTING:
            raise SchemaUnusable(f"a path is more than {MAX_NESTING} deep")
        message, file = self._messages[name]
        made = self._new()
        fields = {field.name: field for field in message.field}
        texts: list[str] = []
        for step, inner in tree.items():
            if step in fields:
                text = self._value(made, fields[step], file, inner, (at, depth))
                texts.append(f"{step!r}: {text}")
            elif self._is_strict:
                near = difflib.get_close_matches(step, fields, n=1) or list(fields)[:10]
                raise SchemaUnusable(f"{name[1:]} has no field {step}; it has {', '.join(near)}")
        _complete(made, message)
        return f".{made.name}", f"{{{', '.join(texts)}}}"

    def _new(self) -> Proto:
        return self.file.message_type.add(name=f"M{len(self.file.message_type)}")

    def _value(
        self, made: Proto, field: Proto, file: Proto, inner: Tree, place: tuple[str, int]
    ) -> str:
        """Declares a field, and returns the expression of its value."""
        (at, depth), number = place, field.number
        value, element = f"{at}.f{number}", f"e{depth}"
        if _is_delimited(field, file):
            raise SchemaUnusable(f"{field.name[:100]} is delimited, which is not supported")
        declared = _declared(made, field)
        if field.label != _Field.LABEL_REPEATED:
            text = self._plain(declared, field, inner, (value, depth + 1))
            if _has_presence(field, file):
                return f"{text} if {at}.HasField('f{number}') else None"
            return f"{text} or None" if field.type == _Field.TYPE_STRING else text
        entry = self._messages[field.type_name][0] if field.type_name in self._messages else None
        if entry is None or not entry.options.map_entry:
            text = self._plain(declared, field, inner, (element, depth + 1))
            return f"[{text} for {element} in few({value})]"
        wanted: Tree = {}
        for below in inner.values():
            _merge(wanted, below)
        pair = self._new()
        declared.type_name = f".{pair.name}"
        texts = [
            self._plain(_declared(pair, each), each, tree, (f"{element}.f{each.number}", depth + 1))
            for each, tree in zip(entry.field, ({}, wanted), strict=False)  # a key and a value
        ]
        if len(texts) != 2:
            raise SchemaUnusable(f"{field.name[:100]} is no map")
        of_key = f"key({texts[0]})"
        wants = f"if {of_key} in {tuple(inner)!r}"
        return f"{{{of_key}: {texts[1]} for {element} in few({value}) {wants}}}"

    def _plain(self, declared: Proto, field: Proto, inner: Tree, place: tuple[str, int]) -> str:
        """The expression of a value at *place* that is there; completes its declaration."""
        (at, depth), kind = place, field.type_name
        if field.type == _Field.TYPE_GROUP:
            raise SchemaUnusable(f"{field.name[:100]} is a group, which is not supported")
        if field.type != _Field.TYPE_MESSAGE:
            if inner and self._is_strict:
                raise SchemaUnusable(f"{field.name} is no message, so it has no {min(inner)}")
            if field.type != _Field.TYPE_ENUM:
                return at
            symbols = f"symbols{len(self.names)}"
            self.names[symbols] = self._enums.get(kind, {})
            return f"{symbols}.get({at}, {at})"
        text = "{}"
        if inner:
            declared.type_name, text = self.message(kind, inner, at, depth)
        elif kind == TIMESTAMP:
            declared.type_name, _ = self.message(kind, {"seconds": {}, "nanos": {}}, at, depth)
            text = f"({at}.f1 * 1000000000 + {at}.f2)"
        elif kind in WRAPPERS:
            declared.type_name, _ = self.message(kind, {"value": {}}, at, depth)
            text = f"{at}.f1"
        else:
            declared.type_name = f".{self._new().name}"
        return text


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


def _has_presence(field: Proto, file: Proto) -> bool:
    """Whether a field can be missing; otherwise it then has its default."""
    if field.type == _Field.TYPE_MESSAGE or field.HasField("oneof_index"):
        return True
    if file.syntax != "editions":
        return str(file.syntax) != "proto3"
    given = field.options.features if field.options.features.HasField("field_presence") else None
    features = given or file.options.features
    return bool(features.field_presence != descriptor_pb2.FeatureSet.IMPLICIT)


def _is_delimited(field: Proto, file: Proto) -> bool:
    """Whether a message is written as a group (editions)."""
    own = field.options.features
    features = own if own.HasField("message_encoding") else file.options.features
    encoding = features.message_encoding
    return bool(field.type == _Field.TYPE_MESSAGE and encoding == features.DELIMITED)


def _merge(into: Tree, other: Tree) -> None:
    for name, inner in other.items():
        _merge(into.setdefault(name, {}), inner)

"""Protobuf: the schemas of a registry or of a descriptor set to decoders of records, and to the
tables that the compiled part reads them with.
"""

import difflib
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from evaluator.mapping.field_types import require_types
from evaluator.mapping.field_types import unfit as unfit_message
from evaluator.mapping.framed_texts import FramedTexts, Tables
from evaluator.mapping.framing import HEADER, frame_of
from evaluator.mapping.log_mapping import LogMapping
from evaluator.mapping.members import tree_of
from evaluator.mapping.protobuf_types import Decode, Proto, Types, accepted
from evaluator.mapping.record import Record
from evaluator.mapping.schemas import Answer, SchemaUnusable
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.reading import MAX_NESTING

Indexes = dict[str, tuple[int, ...]]
"""Where messages are in their file, by their names with a dot before."""


def compiled(answer: Answer, mapping: LogMapping) -> Decode:
    """The decoder of a schema: of message indexes and the message. Raises SchemaUnusable."""
    types, names = types_in_answer(answer)
    tree = tree_of(mapping)
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
                found, _ = types.decoder(names[indexes], tree, is_strict=False)
            except SchemaUnusable as unusable:
                letter = Malformed("registry", str(unusable)[:200])
                found = lambda _: letter  # noqa: E731 - a decoder of refusals
            decoders[indexes] = found
        return found(value)

    return decode


def unfit(answer: Answer, mapping: LogMapping) -> str | None:
    """The reason why no message of a schema fits, for the nearest one. Raises SchemaUnusable."""
    types, names = types_in_answer(answer)
    tree = tree_of(mapping)
    whys: list[tuple[int, str]] = []
    with accepted("has fields without a type"):
        for name in names.values():
            why = unfit_message(mapping, name, types.messages)
            if why is None:
                return None
            n_named = sum(field.name in tree for field in types.messages[name][0].field)
            whys.append((n_named, f"{name[1:]}: {why}"))
    return max(whys)[1] if whys else "has no message"


def types_in_answer(answer: Answer) -> tuple[Types, dict[tuple[int, ...], str]]:
    """The types of a schema, and its messages by their indexes. Raises SchemaUnusable."""
    if answer.kind != "PROTOBUF":
        raise SchemaUnusable(f"is of type {answer.kind}, not PROTOBUF")
    with accepted("is not a serialized descriptor"):
        texts = [text for _, text in (*answer.references, ("", answer.schema))]
        files = [FileDescriptorProto.FromString(b64decode(text, validate=True)) for text in texts]
        return Types(files), {at: name for name, at in _indexes_of(files[-1]).items()}


def reader(mapping: LogMapping) -> Callable[[Record], Any]:
    """The decoder of records by a descriptor set, framed or not. Raises SchemaUnusable."""
    types, known = _types_in_set(mapping)
    name = f".{mapping.message}"
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or list(known)[:10]
        names = ", ".join(each.removeprefix(".") for each in near)
        raise SchemaUnusable(f"descriptor_set has no message {mapping.message}; it has {names}")
    decode, _ = types.decoder(name, tree_of(mapping), is_strict=True)
    with accepted("descriptor_set has fields without a type"):
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


def _types_in_set(mapping: LogMapping) -> tuple[Types, Indexes]:
    """The types of a descriptor set, and the indexes of its messages. Raises SchemaUnusable."""
    known: Indexes = {}
    with accepted("descriptor_set is not a file of protoc --descriptor_set_out"):
        files = FileDescriptorSet.FromString(mapping.descriptors or b"").file
        for file in files:
            known |= _indexes_of(file)
        return Types(files), known


def texts(mapping: LogMapping, answers: Mapping[str, Answer]) -> FramedTexts:
    """The texts of records, framed or, with a descriptor set, not."""
    tree = tree_of(mapping)
    if mapping.descriptors is not None:
        types, indexes_of = _types_in_set(mapping)
        name = f".{mapping.message}"
        own, (_, unframed) = indexes_of[name], types.decoder(name, tree, is_strict=True)
        return FramedTexts(
            lambda _, indexes: unframed if indexes == own else None,
            unframed=unframed,
            has_indexes=True,
        )

    schema_of = cache(lambda number: types_in_answer(answers[str(number)]))

    def tables(number: int, indexes: tuple[int, ...]) -> Tables | None:
        types, names = schema_of(number)
        return types.decoder(names[indexes], tree, is_strict=False)[1]

    return FramedTexts(tables, has_indexes=True)


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


def _indexes_of(file: Proto) -> Indexes:
    """The messages of a file by name, with a dot before it, and where they are in it."""
    found: Indexes = {}

    def add(before: str, messages: Sequence[Proto], at: tuple[int, ...]) -> None:
        for n, message in enumerate(messages):
            found[f"{before}.{message.name}"] = (*at, n)
            add(f"{before}.{message.name}", message.nested_type, (*at, n))

    add(f".{file.package}" if file.package else "", file.message_type, ())
    return found

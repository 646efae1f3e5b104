"""Protobuf schemas made without a compiler, and records from the serializer of protobuf."""

import uuid

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)

from tests.mapping.framed_world import world

FIELD = descriptor_pb2.FieldDescriptorProto
WELL_KNOWN = (timestamp_pb2, wrappers_pb2)


def add_message(parent, name, text):
    """Adds a message. Lines of *text*: [repeated|optional|oneof:NAME] TYPE NAME = NUMBER."""
    message = (parent.message_type if hasattr(parent, "message_type") else parent.nested_type).add(
        name=name
    )
    optional = []
    for line in filter(None, map(str.strip, text.splitlines())):
        *modifier, kind, field_name, _, number = line.split()
        field = message.field.add(name=field_name, number=int(number))
        field.label = FIELD.LABEL_REPEATED if modifier == ["repeated"] else FIELD.LABEL_OPTIONAL
        if kind.startswith("enum:"):
            field.type, field.type_name = FIELD.TYPE_ENUM, kind.removeprefix("enum:")
        elif kind.startswith("."):
            field.type, field.type_name = FIELD.TYPE_MESSAGE, kind
        else:
            field.type = getattr(FIELD, f"TYPE_{kind.upper()}")
        if modifier == ["optional"]:
            optional.append(field)
        elif modifier and modifier[0].startswith("oneof:"):
            names = [each.name for each in message.oneof_decl]
            name_of = modifier[0].removeprefix("oneof:")
            if name_of not in names:
                message.oneof_decl.add(name=name_of)
                names.append(name_of)
            field.oneof_index = names.index(name_of)
    for field in optional:
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")
    return message


def add_map(message, field, number, key, value):
    """Adds a field map<key, value> as protoc does."""
    name = "".join(part.capitalize() for part in field.split("_")) + "Entry"
    add_message(message, name, f"{key} key = 1\n{value} value = 2").options.map_entry = True
    place = f".shop.{message.name}.{name}"
    message.field.add(
        name=field, number=number, label=FIELD.LABEL_REPEATED, type=FIELD.TYPE_MESSAGE, type_name=place
    )  # fmt: skip


def new_file(syntax="proto3"):
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    file.dependency.extend(each.DESCRIPTOR.name for each in WELL_KNOWN)
    return file


def classes_of(file):
    """The message classes of a file by name, created by the package protobuf."""
    pool = descriptor_pool.DescriptorPool()
    for each in WELL_KNOWN:
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{message.name}"))
        for message in file.message_type
    }  # fmt: skip


def framed(number, payload, indexes=(0,)):
    """A record in the format of Confluent's serializers."""
    head = (
        b"\x00" + number.to_bytes(4, "big")
        if isinstance(number, int)
        else b"\x01" + uuid.UUID(number).bytes
    )
    return head + encoded(indexes) + payload


def encoded(indexes):
    if tuple(indexes) == (0,):
        return b"\x00"
    return b"".join(bytes([2 * each]) for each in (len(indexes), *indexes))


def world_file():
    """The schema of the framed records."""
    file = new_file()
    add_message(file, "Hit", "int64 sku = 1\ndouble score = 2\ndouble price = 3")
    head = "string session = 1\nint32 number = 2\nint64 at = 3\n"
    add_message(file, "Serp", head + "optional string text = 4\nrepeated .shop.Hit hits = 5")
    add_message(file, "Click", head + "string id = 4\nint64 sku = 5\nstring action = 6")
    return file


def in_world(seed=3):
    """The world of framed records with unframed Protobuf records."""
    classes = classes_of(world_file())
    serps, clicks = world(seed)
    return tuple(
        [
            (partition, classes[name](**row).SerializeToString(), canonical)
            for partition, row, canonical in rows
        ]
        for name, rows in (("Serp", serps), ("Click", clicks))
    )

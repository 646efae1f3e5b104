"""Protobuf in the compiled part: the results of the package, or the record is left to it."""

import json
import random
from base64 import b64encode
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.mapping import framed_texts
from evaluator.mapping.document import read_document
from evaluator.mapping.framing import HEADER
from evaluator.mapping.messages import messages_of
from evaluator.mapping.plan import plan_of
from evaluator.mapping.protobuf import texts
from evaluator.mapping.protobuf_types import MAX_ELEMENTS, Types
from evaluator.mapping.schemas import Answer
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.native import library
from tests.mapping.protobuf_world import (
    FIELD,
    add_map,
    add_message,
    classes_of,
    framed,
    new_file,
)
from tests.mapping.test_avro_texts import batch_of, n_planned
from tests.mapping.test_framed import GUID, damaged
from tests.mapping.test_protobuf import (
    JUDGMENTS,
    RANKINGS,
    SHOP,
    click,
    of_registry,
    random_serp,
    serp,
    set_of,
)
from tests.repeats import sized
from tests.wire.sanitized import built, printed

SCALARS = """int32 uint32 sint32 int64 uint64 sint64 bool fixed32 sfixed32 float fixed64 sfixed64
double string enum:.shop.Kind""".split()
MESSAGES = [".google.protobuf.Timestamp", *(f".google.protobuf.{name}Value" for name in
    "String Int64 UInt64 Double Float Bool Int32 UInt32".split())]  # fmt: skip
KEYS = "int32 uint64 sint32 fixed64 bool string".split()


def random_file(chance):
    """A schema of four messages, the first of which is recorded."""
    file = new_file(chance.choice(["proto3", "proto3", "proto2"]))
    kind = file.enum_type.add(name="Kind")
    symbols = {"A": 0, "B": 1, "LONG_ONE": 300, "NEGATIVE": -1, "SEVEN": 7}
    for name, number in symbols.items():
        kind.value.add(name=name, number=number)
    for at in range(4):
        numbers = chance.sample([*range(1, 14), 100, 2**29 - 1], 9)
        lines = []
        for n in range(chance.randrange(2, 8)):
            kinds = [*SCALARS, chance.choice(MESSAGES), ".shop.M1", ".shop.M2", ".shop.M3", "bytes"]
            modifiers = ["", "repeated", "oneof:o", "oneof:p"]
            modifiers += ["optional"] * (file.syntax == "proto3")
            modifier = chance.choice(modifiers)
            lines.append(f"{modifier} {chance.choice(kinds)} f{n} = {numbers.pop()}")
        message = add_message(file, f"M{at}", "\n".join(lines))
        if chance.random() < 0.5:
            value = chance.choice([*SCALARS[:4], "string", ".shop.M3", MESSAGES[0], MESSAGES[1]])
            add_map(message, "map", numbers.pop(), chance.choice(KEYS), value)
    return file


def random_tree(chance, messages, message, depth=0):
    """Some paths in a message."""
    tree = {}
    for field in message.field:
        if chance.random() < 0.2 or field.type == FIELD.TYPE_BYTES:
            continue
        inner = messages.get(field.type_name)
        tree[field.name] = {}
        if inner is None:
            continue
        if inner.options.map_entry:
            below = messages.get(inner.field[1].type_name)
            for key in chance.sample(["1", "5", "true", "a", "", "-1", "18446744073709551615"], 3):
                has_more = below is not None and depth < 3 and chance.random() < 0.8
                tree[field.name][key] = (
                    random_tree(chance, messages, below, depth + 1) if has_more else {}
                )
        elif depth < 3 and chance.random() < 0.8:
            tree[field.name] = random_tree(chance, messages, inner, depth + 1)
    return tree


def random_value(chance, field):
    if field.type == FIELD.TYPE_ENUM:
        return chance.choice([0, 1, 300, -1, 7, *[4] * (not field.enum_type.is_closed)])
    if field.cpp_type == field.CPPTYPE_STRING:
        text = chance.choice(["", "a", "1", "true", "\u00fc\U0001f600", 'q"\\\n\0', "y" * 200])
        return text.encode() if field.type == FIELD.TYPE_BYTES else text
    if field.cpp_type == field.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if field.cpp_type in {field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT}:
        odd = [-0.0, float("nan"), float("inf")] if chance.random() < 0.1 else []
        return chance.choice([0.0, 0.5, 0.1 + 0.2, -1e-7, 1e30, 2.0**60, *odd])
    is_signed = field.cpp_type in {field.CPPTYPE_INT32, field.CPPTYPE_INT64}
    bits = 32 if field.cpp_type in {field.CPPTYPE_INT32, field.CPPTYPE_UINT32} else 64
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    return chance.choice([0, 1, 5, 127, 128, most if chance.random() < 0.3 else 2, least])


def fill(chance, message, depth=0):
    for field in message.DESCRIPTOR.fields if depth < 4 else ():
        if chance.random() < 0.3:
            continue
        entry = field.message_type if field.type == FIELD.TYPE_MESSAGE else None
        if entry is not None and entry.GetOptions().map_entry:
            for _ in range(chance.randrange(4)):
                key = random_value(chance, entry.fields[0])
                if entry.fields[1].message_type is not None:
                    fill(chance, getattr(message, field.name)[key], depth + 1)
                else:
                    getattr(message, field.name)[key] = random_value(chance, entry.fields[1])
        elif field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(chance.randrange(4)):
                if entry is None:
                    values.append(random_value(chance, field))
                else:
                    fill(chance, values.add(), depth + 1)
        elif entry is not None:
            getattr(message, field.name).SetInParent()
            fill(chance, getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, random_value(chance, field))
    return message


def tables_of(file, name, tree):
    """The tables of a message, and the decoder by the package."""
    decode, tables = Types([file]).decoder(name, tree, is_strict=False)
    return tables, decode


def texts_of(tables, payloads):
    values = ByteStrings.of(payloads)
    return list(tables.texts(values, np.zeros(len(payloads), np.int64)))


def plain(value):
    """Without members that are missing, which JSON leaves out, in one form."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if each is not None}
    return [plain(each) for each in value] if isinstance(value, list) else value


def in_one_form(value):
    return json.dumps(plain(value), sort_keys=True)


def n_equal(tables, decode, payloads):
    """The number of payloads with a text, which must equal the package's values."""
    n_read = 0
    for payload, text in zip(payloads, texts_of(tables, payloads), strict=True):
        if text is not None:
            expected = decode(payload)
            assert not isinstance(expected, Malformed), (payload.hex(), text)
            assert in_one_form(json.loads(text)) == in_one_form(expected), payload.hex()
            n_read += 1
    return n_read


def messages_in(file):
    """The messages of a file by name, with those in them."""
    found = {}
    for message in file.message_type:
        found[f".shop.{message.name}"] = message
        found |= {f".shop.{message.name}.{each.name}": each for each in message.nested_type}
    return found


def random_cases(chance, n):
    """Tables, decoder, and payloads: whole, two joined, and damaged ones."""
    for _ in range(n):
        file = random_file(chance)
        messages = messages_in(file)
        tree = random_tree(chance, messages, messages[".shop.M0"])
        kind = classes_of(file)["M0"]
        whole = [fill(chance, kind()).SerializeToString() for _ in range(20)]
        joined = [chance.choice(whole) + chance.choice(whole) for _ in range(5)]
        mutants = [damaged(chance, chance.choice(whole) or b"\x08") for _ in range(40)]
        yield file, tree, (whole, joined, mutants)


@pytest.mark.slow
def test_random_records_of_random_schemas_are_read_as_by_the_package():
    chance, n_read, n = random.Random(1), Counter(), Counter()
    for file, tree, kinds in random_cases(chance, sized(1_000, quick=300)):
        tables, decode = tables_of(file, ".shop.M0", tree)
        for name, payloads in zip(("whole", "joined", "damaged"), kinds, strict=True):
            n_read[name] += n_equal(tables, decode, payloads)
            n[name] += len(payloads)
    assert n_read["whole"] > 0.8 * n["whole"], n_read
    assert n_read["joined"] > n["joined"] / 10
    assert n_read["damaged"] > n["damaged"] / 10


def varint(number):
    text = b""
    while number > 0x7F:
        text, number = text + bytes([number & 0x7F | 0x80]), number >> 7
    return text + bytes([number])


def field(number, content, wire=None):
    """A field: bytes with their length, an integer, or *content* as it is."""
    if wire is not None:
        return varint(number << 3 | wire) + content
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def odd_file():
    file = new_file()
    kinds = file.enum_type.add(name="Kind")
    for name, number in (("NONE", 0), ("SOME", 5)):
        kinds.value.add(name=name, number=number)
    message = add_message(file, "M", """
        string text = 1
        optional string maybe = 2
        .shop.M inner = 3
        repeated int32 numbers = 4
        repeated .shop.M messages = 5
        uint64 large = 6
        double real = 7
        .google.protobuf.Timestamp at = 8
        oneof:o int32 one = 9
        oneof:o string two = 10
        oneof:o .shop.M three = 11
        enum:.shop.Kind kind = 12
        bool flag = 14
        .google.protobuf.BoolValue boxed = 15
        repeated string names = 17
    """)  # fmt: skip
    add_map(message, "map", 13, "string", "int32")
    return file


ONE = {"text": {}, "one": {}}
TREE = {
    **{name: {} for name in "text maybe numbers large real at two kind flag boxed names".split()},
    "inner": {"text": {}, "inner": {"large": {}}}, "messages": ONE, "map": {"a": {}, "": {}},
}  # fmt: skip
ENTRY = field(1, b"a") + field(2, 1)
ODD = {
    "nothing": (b"", True),
    "an unknown field": (field(99, 1) + field(98, b"x"), True),
    "the last of two numbers": (field(6, 1) + field(6, 2), True),
    "a negative number in ten bytes": (field(4, 2**64 - 1), True),
    "a number in eleven bytes": (b"\x30" + b"\x80" * 10 + b"\0", False),
    "ten bytes with more than 64 bits": (b"\x30" + b"\xff" * 9 + b"\x7f", False),
    "a number that does not end": (b"\x30\x80", False),
    "a tag that does not end": (b"\x80", False),
    "a tag in six bytes": (b"\xb0\x80\x80\x80\x80\0\1", False),
    "a tag beyond 32 bits": (b"\xb0\x80\x80\x80\x10\1", False),
    "a tag in two bytes": (b"\xb0\0\1", True),
    "the field 0": (b"\0\1", False),
    "a length beyond the end": (b"\x0a\x05abc", False),
    "a length of 64 bits": (b"\x0a" + b"\xff" * 9 + b"\1abc", False),
    "a length in five bytes": (b"\x0a\x81\x80\x80\x80\0a", True),
    "a length in six bytes": (b"\x0a\x81\x80\x80\x80\x80\0a", False),
    "a length in six bytes in what is not read": (b"\x9a\x06\x81\x80\x80\x80\x80\0a", False),
    "a length beyond the end in what is not read": (b"\x9a\x06\x05abc", False),
    "eight bytes of which five are there": (b"\x39" + b"\0" * 5, False),
    "a group": (field(99, b"", 3) + field(99, b"", 4), False),
    "groups in groups": (field(99, b"", 3) * 200, False),
    "an end of a group": (field(99, b"", 4), False),
    "a wire type that is none": (field(99, b"", 6), False),
    "another wire type than that of the schema": (field(1, 5), False),
    "no UTF-8": (field(1, b"\xff"), False),
    "a surrogate in UTF-8": (field(1, b"\xed\xa0\x80"), False),
    "no UTF-8 in the first of two texts": (field(1, b"\xff") + field(1, b"x"), False),
    "no UTF-8 in what is not read": (field(18, b"\xff"), True),
    "no UTF-8 in a key without a name": (field(13, field(1, b"\xff")), False),
    "two messages": (field(3, field(1, b"x")) + field(3, field(6, 1)), False),
    "a text with all that is escaped": (field(1, bytes(range(32)) + b'"\\'), True),
    "an empty text with presence": (field(2, b"") + field(1, b""), True),
    "packed numbers": (field(4, b"\1\2\x80\1"), True),
    "numbers that are packed and not": (field(4, b"\1\2") + field(4, 3) + field(4, b""), True),
    "packed numbers that do not end": (field(4, b"\1\x80"), False),
    "elements apart": (field(4, 1) + field(6, 1) + field(4, 2), False),
    "elements apart by an unknown field": (field(4, 1) + field(99, 1) + field(4, 2), False),
    "too large for 64 bits with a sign": (field(6, 2**63), False),
    "not finite": (field(7, b"\0\0\0\0\0\0\xf0\x7f", 1), False),
    "minus zero": (field(7, b"\0" * 7 + b"\x80", 1), False),
    "a time": (field(8, field(1, 9) + field(2, 7)), True),
    "a time of which a part is given": (field(8, field(2, 7)), True),
    "a time beyond 64 bits": (field(8, field(1, 2**62)), False),
    "a member of a oneof": (field(10, b"x"), True),
    "another member of a oneof": (field(9, 5), True),
    "two members of a oneof": (field(10, b"x") + field(9, 5), False),
    "a broken message in a oneof, removed": (field(11, b"\x0a\7") + field(10, b"x"), False),
    "an enum without a symbol": (field(12, 9), True),
    "an enum of 64 bits": (field(12, 2**32 + 5), True),
    "a boolean of many bits": (field(14, 2**40), True),
    "an empty wrapper": (field(15, b""), True),
    "entries": (field(13, ENTRY) + field(13, field(1, b"b")) + field(13, b""), True),
    "two entries with a key": (field(13, ENTRY) * 2, False),
    "two entries with a key without a name": (field(13, field(1, b"b")) * 2, True),
    "an entry with two keys": (field(13, field(1, b"b") + ENTRY), False),
    "an entry with a value of another kind": (field(13, field(2, b"x")), False),
    "a broken entry with a key without a name": (field(13, field(1, b"b") + b"\x10\x80"), False),
    "many empty elements": (field(5, b"") * 2_000, True),
    "many empty texts": (field(17, b"") * 5_000, True),
    "a long text": (field(1, b"x" * 262_100), False),
    "deep in what is not read": (field(3, field(5, b"x" * 90)) + b"", True),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_records_are_read_as_by_the_package_or_left_to_it(name):
    payload, is_read = ODD[name]
    tables, decode = tables_of(odd_file(), ".shop.M", TREE)
    room = field(18, b"x" * 200)  # of a field that is not there, so that its text has room
    assert n_equal(tables, decode, [payload, b"", room]) == 2 + is_read


@pytest.mark.slow
def test_elements_have_the_limit_of_the_package():
    tables, decode = tables_of(odd_file(), ".shop.M", TREE)
    most, more = (field(4, b"\1" * n) for n in (MAX_ELEMENTS, MAX_ELEMENTS + 1))
    assert n_equal(tables, decode, [most, more]) == 1
    assert n_equal(tables, decode, [field(17, b"") * (MAX_ELEMENTS // 2) for _ in range(3)]) == 3


@pytest.mark.slow
def test_nested_records_are_read_as_deep_as_their_paths():
    tree = inner = {}
    for _ in range(60):
        inner["inner"] = {"text": {}}
        inner = inner["inner"]
    tables, decode = tables_of(odd_file(), ".shop.M", tree)
    payload = field(1, b"x")
    for depth in range(1, 80):
        payload = field(3, payload)
        assert n_equal(tables, decode, [payload]) == 1, depth
    for _ in range(1_000):
        payload = field(3, payload)
    assert n_equal(tables, decode, [payload]) == 1


def test_descriptors_whose_messages_nest_exponentially_take_little_room():
    file = new_file()
    for depth in range(60):
        below = f".shop.M{depth + 1}" if depth < 59 else "string"
        add_message(file, f"M{depth}", f"{below} a = 1\n{below} b = 2\nstring text = 3")
    tables, decode = tables_of(file, ".shop.M0", {"a": {"b": {"text": {}}}})
    assert n_equal(tables, decode, [b"", field(1, field(2, field(3, b"x")))]) == 2
    assert len(tables.types) < 10


@pytest.fixture
def parts_of(tmp_path):
    def made(text, answers=None):
        (tmp_path / "shop.desc").write_bytes(set_of(SHOP))
        ((_, mapping),) = read_document(text, str(tmp_path / "m.toml")).logs.items()
        given = mapping, answers or {}
        return plan_of(mapping), texts(*given), messages_of(*given)

    return made


ANSWER = Answer("PROTOBUF", b64encode(SHOP.SerializeToString()).decode())


@pytest.mark.slow
def test_messages_have_the_bytes_of_the_slow_path(parts_of):
    chance, planned, kind = random.Random(2), Counter(), type(serp())
    parts = parts_of(RANKINGS)
    n = sized(200, quick=20)
    for _ in range(n):
        values = [kind(**random_serp(chance, later=7)).SerializeToString() for _ in range(100)]
        values += [serp(number=at).SerializeToString() for at in range(10)]
        planned["whole"] += n_planned(parts, values)
        planned["damaged"] += n_planned(parts, [damaged(chance, value) for value in values])
    assert planned["whole"] > 10 * n
    assert planned["damaged"] > n


@pytest.mark.slow
def test_ordinary_records_need_no_slow_path_framed_or_not(parts_of):
    values = [serp(number=number).SerializeToString() for number in range(3)]
    of_frames = [framed(7, value, indexes) for value in values for indexes in ((0,),)]
    long_form = [b"\0\0\0\0\7\2\0" + value for value in values]
    of_set = parts_of(RANKINGS)
    assert n_planned(of_set, values) == 3
    assert n_planned(of_set, [*values, *of_frames, *long_form]) == 9
    with_registry = parts_of(of_registry(RANKINGS), {"7": ANSWER})
    assert n_planned(with_registry, [*of_frames, *values, *long_form]) == 6


def test_every_record_is_read_by_the_schema_and_the_message_that_it_names(parts_of):
    text = of_registry(JUDGMENTS.replace('[judgments.rows]\neach = "c"\njudgment_id = "j"\n', "")
        .replace('"i"', '"c[0].i"').replace('path = "a"', 'path = "c[0].a"'))  # fmt: skip
    assert parts_of(text)[0] is None  # indices are not planned
    other = descriptor_pb2.FileDescriptorProto.FromString(SHOP.SerializeToString())
    other.message_type[0].field[4].number, other.message_type[0].field[3].number = 4, 5
    answers = {"7": ANSWER, "8": Answer("PROTOBUF", b64encode(other.SerializeToString()).decode()),
               "9": Answer("AVRO", "{}"), "10": Answer(refused="no")}  # fmt: skip
    payload = serp(number=10**12, at=10**15).SerializeToString()
    parts = parts_of(of_registry(RANKINGS), answers)
    read = [framed(number, payload) for number in (7, 8)] * 3
    left = [framed(number, payload) for number in (9, 10, 11, GUID)]
    left += [framed(7, payload, indexes) for indexes in ((5,), (90,), (0, 1), (0, 1, 1))]
    left += [b"\0\0\0\0\7", b"\0\0\0\0\7\1" + payload, b"\0\0\0\0\7\x80\1" + payload, payload, b""]
    random.Random(3).shuffle(values := read + left)
    assert n_planned(parts, values) == len(read)
    headers = [(), [("a", b"1")], [(HEADER, b"\0\0\0\0\7\0")]]
    assert n_planned(parts, [framed(7, payload)] * 3, headers) == 2
    of_set = parts_of(RANKINGS)
    assert n_planned(of_set, [framed(1, payload), framed(1, payload, (1,)), b"\1" + payload]) == 1
    assert n_planned(of_set, [payload] * 3, headers) == 2


def test_the_number_of_kept_frames_is_limited(parts_of, monkeypatch):
    monkeypatch.setattr(framed_texts, "MAX_SCHEMAS", 10)
    payload = serp(number=5).SerializeToString()
    of_set, with_answers = parts_of(RANKINGS), parts_of(of_registry(RANKINGS), {"7": ANSWER})
    values = [framed(number, payload) for number in (*range(2_000, 2_030), 7)]
    assert n_planned(of_set, values) == 31  # by the only schema
    assert n_planned(with_answers, values) == 1
    assert max(len(of[1]._known) for of in (of_set, with_answers)) <= 10


def test_clicks_of_several_rows_are_one_record_of_the_slow_path(parts_of):
    assert parts_of(JUDGMENTS)[0] is None  # each row is a message
    text = JUDGMENTS.replace('judgment_id = "j"\n', "")
    assert n_planned(parts_of(text), [click(n).SerializeToString() for n in (1, 2, 3)]) > 0


@pytest.mark.slow
@pytest.mark.xdist_group("texts_harness")  # built once
def test_no_mutant_causes_an_invalid_memory_access(tmp_path_factory):
    chance = random.Random(3)
    program = built(Path(__file__).with_name("texts_harness.c"), tmp_path_factory.getbasetemp())
    sent = [np.ascontiguousarray(library.powers_of_five).tobytes()]
    for file, tree, kinds in random_cases(chance, 200):
        tables, _ = tables_of(file, ".shop.M0", tree)
        sent += batch_of(
            tables, [each for values in kinds for each in values], chance.choice([0, 9, 999])
        )
    odd = [payload for payload, _ in ODD.values()]
    tables, _ = tables_of(odd_file(), ".shop.M", TREE)
    for room in (0, 50, 100_000):
        sent += batch_of(tables, odd * 7, room)
    assert int(printed(program, b"".join(sent))) > 2_000

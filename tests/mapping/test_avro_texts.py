"""Avro in the compiled part: the bytes of the slow path, or no message."""

import json
import random
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from evaluator.mapping.avro import texts
from evaluator.mapping.document import read_document
from evaluator.mapping.framing import HEADER
from evaluator.mapping.messages import messages_of
from evaluator.mapping.plan import plan_of
from evaluator.mapping.record import Record
from evaluator.mapping.schemas import Answer
from evaluator.wire.native import library
from tests.mapping.registry import avro
from tests.mapping.test_framed import HOSTILE, damaged
from tests.mapping.test_stage import records_of
from tests.repeats import sized
from tests.wire.sanitized import built, printed

HEAD = 'format = "avro"\nregistry = "http://registry"\n'
MAPPINGS = [
    f"""
    [rankings]
    {HEAD}
    where = {{ kind = ["SERP", "AD"] }}
    present = ["rows", ["labels.a", "maybe"]]
    trace_id = ["maybe", "labels.b", "key:"]
    node_id = "number"
    timestamp_ms = {{ path = "at", unit = "us" }}
    variant = {{ path = "kind", table = {{ SERP = "s", AD = "a" }} }}
    query = "inner.text"
    segments = {{ locale = "labels.locale" }}
    [rankings.rows]
    each = "rows"
    candidate_id = ["id", "other"]
    score = "score"
    features = {{ small = "small", one = {{ const = 1 }} }}
    exposed = "seen"
    """,
    f"""
    [rankings]
    {HEAD}
    trace_id = "inner.text"
    node_id = "number"
    timestamp_ms = "at"
    [rankings.rows]
    candidate_id = "ids"
    score = "scores"
    """,
    f"""
    [judgments]
    {HEAD}
    trace_id = "inner.text"
    node_id = "number"
    timestamp_ms = "at"
    [judgments.rows]
    each = "rows"
    candidate_id = "id"
    grade = "small"
    """,
]
ROW = {
    "type": "record", "name": "Row", "fields": [
        {"name": "id", "type": ["string", "long", "null"]},
        {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "other", "type": "string"},
        {"name": "score", "type": "double"},
        {"name": "small", "type": ["float", "int"]},
        {"name": "seen", "type": "boolean"},
    ],
}  # fmt: skip
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "text", "type": "string"}]}
SCHEMA = {
    "type": "record", "name": "shop.Event", "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["SERP", "AD", "X"]}},
        {"name": "inner", "type": INNER},
        {"name": "before", "type": ["null", "Inner", {"type": "array", "items": "Inner"}]},
        {"name": "maybe", "type": ["null", "string", "bytes", "double"]},
        {"name": "labels", "type": {"type": "map", "values": ["string", "int"]}},
        {"name": "number", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "rows", "type": {"type": "array", "items": ROW}},
        {"name": "ids", "type": {"type": "array", "items": "string"}},
        {"name": "scores", "type": {"type": "array", "items": "double"}},
    ],
}  # fmt: skip
TEXT = json.dumps(SCHEMA)
ANSWERS = {"7": Answer("AVRO", TEXT), "8": Answer("AVRO", '"string"'), "9": Answer(refused="no")}


def event(chance):
    """A record of the schema, sometimes an odd one."""
    is_odd = chance.random() < 0.3
    text = chance.choice(
        ["x", "\u00fc\U0001f600", 'a"\\\n\x00\x1f', "", "y" * 300] if is_odd else ["x", "y"]
    )
    doubles = [0.5, 0.1 + 0.2, 1.0, -2.5]
    odd = [-0.0, float("nan"), float("inf"), 1e300, 5e-324, 1e-5, 2.0**60]
    real = lambda: chance.choice(doubles + odd * is_odd)  # noqa: E731
    n = chance.choice([1, 2, 5, 0 if is_odd else 3])
    rows = [
        {
            "id": chance.choice([f"d{k}", k, f"{text}{k}", *[None] * is_odd]), "raw": b"\xff\0\1",
            "other": text, "score": real(), "seen": chance.random() < 0.5,
            "small": chance.choice([real(), 3]),
        }
        for k in range(n)
    ]  # fmt: skip
    return {
        "kind": chance.choice(["SERP", "AD", *["X"] * is_odd]), "inner": {"text": text or "q"},
        "before": chance.choice([None, {"text": "z"}, [{"text": text}] * 3]),
        "maybe": chance.choice([None, "m", *([b"m", 0.5] * is_odd)]),
        "labels": {key: chance.choice(["v", text, 5]) for key in chance.sample("abc", 2)} | {"b": "l", "locale": "de"},
        "number": chance.choice([0, -1, 2**63 - 1, -(2**63), 71]), "rows": rows,
        "at": chance.choice([1_769_846_400_000_999, *[-1] * is_odd]),
        "ids": [f"{text}{k}" for k in range(n)], "scores": [real() for _ in range(n)],
    }  # fmt: skip


def parts_of(text, answers=ANSWERS):
    ((_, mapping),) = read_document(text, "m.toml").logs.items()
    return plan_of(mapping), texts(mapping, answers), messages_of(mapping, answers)


def n_planned(parts, values, headers=None):
    """How many records have a message of the compiled part, which is that of the slow path."""
    plan, texts, slow = parts
    keys = [b"key"] * len(values)
    records = records_of(*values, keys=keys, times=[5] * len(values), headers=headers)
    found = list(plan.messages(texts.of(records)))
    headers = headers or [()] * len(values)
    for value, message, of_record in zip(values, found, headers, strict=True):
        assert message is None or slow(Record(value, b"key", of_record, 5)) == [message], value
    return sum(message is not None for message in found)


@pytest.mark.parametrize("number", range(len(MAPPINGS)))
def test_messages_have_the_bytes_of_the_slow_path(number):
    chance, n, planned = random.Random(number), sized(8_000, quick=1_000), Counter()
    parts = parts_of(MAPPINGS[number])
    for _ in range(n // 500):
        values = [avro(7, TEXT, event(chance)) for _ in range(250)]
        planned["whole"] += n_planned(parts, values)
        planned["damaged"] += n_planned(parts, [damaged(chance, value) for value in values])
    assert planned["whole"] > n / 10
    assert planned["damaged"] > n / 100


def ordinary():
    """A record that the compiled part reads."""
    row = {"id": "a", "raw": b"\xff\0\1", "other": "x", "score": 0.5, "small": 1.5, "seen": True}
    return {
        "kind": "SERP", "inner": {"text": "t\u00fc"}, "before": [{"text": "z"}], "maybe": "m",
        "labels": {"locale": "de", "b": "l", "other": 5}, "number": 71, "at": 1_769_846_400_000_999,
        "rows": [row, {**row, "id": 5, "small": 3}], "ids": ["a", "b"], "scores": [0.5, 1.5],
    }  # fmt: skip


def test_ordinary_records_need_no_slow_path():
    for text in MAPPINGS:
        assert n_planned(parts_of(text), [avro(7, TEXT, ordinary())] * 3) == 3


def test_every_record_is_read_by_the_schema_that_it_names():
    fields = [each for each in SCHEMA["fields"] if each["name"] != "before"]
    other = json.dumps({**SCHEMA, "fields": fields[::-1]})
    answers = {**ANSWERS, "5": Answer("AVRO", other)}
    read = [avro(7, TEXT, ordinary()), avro(5, other, ordinary())]
    left = [avro(8, '"string"', "x"), b"\0\0\0\0\x09x", b"\0\0\0\0\x0ax", b"\0\0\0", b"", b"{}"]
    parts, chance = parts_of(MAPPINGS[1], answers), random.Random(2)
    for n in range(50):
        values = read * (n % 3) + left
        chance.shuffle(values)
        assert n_planned(parts, values) == len(values) - len(left)


def test_an_id_in_a_header_counts_before_the_frame():
    headers = [[], [("a", b"1")], [(HEADER, b"\0\0\0\0\7")]]
    assert n_planned(parts_of(MAPPINGS[1]), [avro(7, TEXT, ordinary())] * 3, headers) == 2


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_read_no_record(name):
    answers = {"1": Answer("AVRO", HOSTILE[name][0])}
    values = [b"\0\0\0\0\1" + each for each in (b"", b"\1", b"\x80\x80\x80\x80\x80\x40\1\0")]
    assert n_planned(parts_of(MAPPINGS[1], answers), values) == 0


def test_blocks_with_a_size_are_read():
    value, scores = avro(7, TEXT, ordinary()), struct.pack("<2d", 0.5, 1.5)
    end = b"\4\2a\2b\0\4" + scores + b"\0"
    assert value.endswith(end)
    with_sizes = value[: -len(end)] + b"\3\x08\2a\2b\0\3\x20" + scores + b"\0"
    assert n_planned(parts_of(MAPPINGS[1]), [value, with_sizes]) == 2


def test_repeated_types_share_their_tables():
    fields = [{"name": "a", "type": "string"}]
    kinds = [{"type": "record", "name": "R0", "fields": fields}]
    for depth in range(1, 50):
        both = [{"name": name, "type": f"R{depth - 1}"} for name in "ab"]
        kinds.append({"type": "record", "name": f"R{depth}", "fields": both})
    references = tuple((each["name"], json.dumps(each)) for each in kinds)
    top = {"type": "record", "name": "Top", "fields": [{"name": "ids", "type": "R49"}]}
    parts = parts_of(MAPPINGS[1], {"7": Answer("AVRO", json.dumps(top), references)})
    assert n_planned(parts, [b"\0\0\0\0\7\2x"]) == 0
    assert len(parts[1].tables(7, ()).types) < 200


def given(tables):
    """The tables as the harnesses read them."""
    arrays = [tables._arrays[name] for name in ("types", "parts", "names")]
    head = struct.pack("<5q", tables.is_protobuf, *map(len, arrays), tables.root)
    return b"".join([head, *(each.tobytes() for each in arrays)])


def batch_of(tables, values, room):
    """The input of texts_harness.c for these values."""
    sized = [struct.pack("<q", len(value)) + value for value in values]
    return [given(tables), struct.pack("<2q", room, len(values)), *sized]


@pytest.mark.slow
@pytest.mark.xdist_group("texts_harness")  # built once
def test_no_mutant_causes_an_invalid_memory_access(tmp_path_factory):
    chance = random.Random(3)
    program = built(Path(__file__).with_name("texts_harness.c"), tmp_path_factory.getbasetemp())
    sent = [np.ascontiguousarray(library.powers_of_five).tobytes()]
    for text in MAPPINGS * 30:
        tables = parts_of(text)[1].tables(7, ())
        values = [damaged(chance, avro(7, TEXT, event(chance)))[5:] for _ in range(100)]
        sent += batch_of(tables, values, chance.choice([0, 9, 999]))
    assert int(printed(program, b"".join(sent))) > 500

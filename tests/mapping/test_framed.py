"""Framed records: the frame, Avro against its JSON twin, damaged records and hostile schemas."""

import io
import json
import random
import time
import uuid
from decimal import Decimal

import fastavro
import pytest
from structlog.testing import capture_logs

from evaluator.mapping.avro import unfit
from evaluator.mapping.document import MappingRefused, read_document
from evaluator.mapping.framing import HEADER, Frame, frame_of, ids_in, payload_of_json
from evaluator.mapping.messages import messages_of
from evaluator.mapping.record import LeftOut, Record
from evaluator.mapping.schemas import Answer
from evaluator.wire.messages.malformed import Malformed
from tests.mapping.registry import avro
from tests.mapping.test_stage import records_of
from tests.repeats import sized

GUID = "0e1b3a52-9a0e-4d4c-8a43-0d8c1f3f7a11"
RANKINGS = """
[rankings]
format = "avro"
registry = "http://registry"
where = { type = ["SERP"] }
trace_id = "session.id"
node_id = "query"
timestamp_ms = { path = "at", unit = "us" }
model = { const = "shop" }
query = "text"
segments = { locale = "labels.locale" }
[rankings.rows]
each = "hits"
candidate_id = "sku"
score = "score"
rank = { path = "position", add = 1 }
features = { price = "price" }
exposed = "seen"
"""
SERP = json.dumps(
    {
        "type": "record", "name": "shop.Serp", "doc": "d", "fields": [
            {"name": "type", "type": {"type": "enum", "name": "Kind", "symbols": ["SERP", "AD"]}},
            {"name": "session", "type": {"type": "record", "name": "Session", "fields": [
                {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
                {"name": "raw", "type": ["null", {"type": "fixed", "name": "F", "size": 4}]}]}},
            {"name": "query", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "text", "type": ["null", "string"], "default": None},
            {"name": "labels", "type": {"type": "map", "values": "string"}},
            {"name": "hits", "type": {"type": "array", "items": {
                "type": "record", "name": "Hit", "fields": [
                    {"name": "sku", "type": ["int", "string"]},
                    {"name": "score", "type": ["float", "double"]},
                    {"name": "position", "type": "int"},
                    {"name": "price", "type": {
                        "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                    {"name": "seen", "type": "boolean"}]}}},
        ],
    }
)  # fmt: skip
RANK = 'rank = { path = "position", add = 1 }'
CLICKS = """
[judgments]
format = "avro"
registry = "http://registry"
trace_id = "t"
node_id = "n"
timestamp_ms = "at"
[judgments.rows]
each = "c"
judgment_id = "j"
candidate_id = "i"
grade = { path = "a", table = { click = 1, buy = 3 } }
"""
CLICK = json.dumps(
    {
        "type": "record", "name": "Click", "fields": [
            {"name": "t", "type": "string"}, {"name": "n", "type": "string"},
            {"name": "at", "type": "long"},
            {"name": "c", "type": {"type": "array", "items": {
                "type": "record", "name": "C", "fields": [
                    {"name": "j", "type": "int"}, {"name": "i", "type": "string"},
                    {"name": "a", "type": "string"}]}}},
        ],
    }
)  # fmt: skip


def serp(**members):
    hits = [
        {"sku": 12, "score": 0.1, "position": 0, "price": Decimal("12.30"), "seen": True},
        {"sku": "b", "score": 0.1 + 0.2, "position": 1, "price": Decimal("-0.01"), "seen": False},
    ]
    return {
        "type": "SERP", "session": {"id": GUID, "raw": b"\xff\x00\x00\x01"}, "query": 71,
        "at": 1_769_846_400_000_999, "text": None, "labels": {"locale": "de", "x": "y"},
        "hits": hits, **members,
    }  # fmt: skip


def mapper(text, answers):
    ((_, mapping),) = read_document(text, "m.toml").logs.items()
    return messages_of(mapping, answers)


def of_serp(record, number=7, answers=None):
    answers = answers or {"7": Answer("AVRO", SERP)}
    return mapper(RANKINGS, answers)(Record(record))


def test_a_frame_is_a_number_or_a_guid_before_the_bytes_or_in_a_header():
    number, guid = b"\x00\x00\x00\x01\x02", b"\x01" + uuid.UUID(GUID).bytes
    assert frame_of(Record(number + b"abc")) == Frame("258", b"abc")
    assert frame_of(Record(guid + b"abc")) == Frame(GUID, b"abc")
    assert frame_of(Record(b"abc", None, [(HEADER, guid)])) == Frame(GUID, b"abc")
    assert frame_of(Record(b"abc", None, [(HEADER, number)])) == Frame("258", b"abc")
    for value, headers, reason, text in (
        (b'{"a":1}', (), "decode", "begins with 0x7b"),
        (b"\x00\x00", (), "decode", "too short"),
        (b"\x01\x00\x00\x00\x00\x00", (), "decode", "begins with 0x01"),
        (b"abc", [(HEADER, number + b"x")], "decode", "header"),
        (b"\x03\x05" + b"g" * 16, (), "registry", "AWS Glue"),
    ):
        found = frame_of(Record(value, None, headers))
        assert (found.reason, text in found.detail) == (reason, True), value
    records = records_of(number + b"a", guid + b"b", number + b"c", b"{}", None)
    assert ids_in([records]) == {"258", GUID}
    records = records_of(b"a", b"b", headers=[[(HEADER, guid)], []])
    assert ids_in([records]) == {GUID}


def test_the_frame_of_json_is_removed():
    text = RANKINGS.replace('format = "avro"\nregistry = "http://registry"\n', "")
    value = {**serp(), "session": {"id": GUID}}
    for hit in value["hits"]:
        hit["price"] = float(hit["price"])
    plain = json.dumps(value).encode()
    expected = mapper(text, {})(Record(plain))
    assert isinstance(expected, list)
    for frame in (b"\x00\x00\x00\x00\x09", b"\x01" + uuid.UUID(GUID).bytes):
        assert mapper(text, {})(Record(frame + plain)) == expected
    assert payload_of_json(b"\x00\x01") == b"\x00\x01"


def test_an_avro_record_becomes_the_message_of_its_json_twin():
    expected = (
        b'{"schema_version":1,"trace_id":"%s","node_id":"71","timestamp_ms":1769846400000,'
        b'"model":"shop","candidate_ids":["12","b"],"scores":[%s,0.30000000000000004],'
        b'"ranks":[1,2],"feature_names":["price"],"features":[[12.3],[-0.01]],'
        b'"exposed":[true,false],"segments":{"locale":"de"}}'
        % (GUID.encode(), b"0.10000000149011612")  # the float nearest to 0.1
    )
    value = serp()
    value["hits"][0]["score"] = ("float", 0.1)
    assert of_serp(avro(7, SERP, value)) == [expected]
    assert of_serp(avro(GUID, SERP, value), answers={GUID: Answer("AVRO", SERP)}) == [expected]
    assert of_serp(avro(7, SERP, serp(type="AD"))) == LeftOut('where: type is "AD"', 1769846400000)


def test_a_schema_may_refer_to_others():
    hit = json.dumps(json.loads(SERP)["fields"][6]["type"]["items"])
    whole = json.loads(SERP)
    whole["fields"][6]["type"]["items"] = "shop.Hit"
    named = json.dumps({**json.loads(hit), "namespace": "shop"})
    value = avro(7, json.dumps(whole), serp(), [named])
    answers = {"7": Answer("AVRO", json.dumps(whole), (("shop.Hit", named),))}
    assert of_serp(value, answers=answers) == of_serp(avro(7, SERP, serp()))
    assert isinstance(of_serp(value, answers=answers), list)


def test_decimals_are_exact_as_ids_numbers_and_times():
    text = """
    [judgments]
    format = "avro"
    registry = "http://registry"
    trace_id = "t"
    node_id = "t"
    timestamp_ms = { path = "at", unit = "s" }
    candidate_id = "t"
    grade = "g"
    """
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 40}
    names = {"t": 0, "at": 6, "g": 20}
    fields = [{"name": each, "type": {**kind, "scale": scale}} for each, scale in names.items()]
    schema = json.dumps({"type": "record", "name": "J", "fields": fields})
    record = {"t": Decimal(10**30), "at": Decimal("1.001999"), "g": Decimal("0." + "1" * 20)}
    (message,) = mapper(text, {"1": Answer("AVRO", schema)})(Record(avro(1, schema, record)))
    found = json.loads(message)
    assert found["trace_id"] == "1" + "0" * 30
    assert found["timestamp_ms"] == 1001  # 1.001999 s, rounded down
    assert found["grades"] == {"1" + "0" * 30: 0.1111111111111111}  # the nearest double


def test_numbers_that_are_not_finite_refuse_the_record():
    for score in (float("nan"), float("inf")):
        value = serp()
        value["hits"][1]["score"] = score
        found = of_serp(avro(7, SERP, value))
        assert found == Malformed("mapping", "a number is not finite")


def test_an_undecodable_record_is_refused_with_the_schema_id():
    good = avro(7, SERP, serp())
    assert of_serp(good[:-1]) == Malformed("decode", "schema 7: the record ends too early")
    assert of_serp(good + b"xy") == Malformed("decode", "schema 7: 2 bytes follow the record")
    unknown = Answer(refused="is unknown to the registry")
    for answer, detail in (
        (unknown, "schema 7: is unknown to the registry"),
        (Answer("PROTOBUF", "syntax"), "schema 7: is of type PROTOBUF, not AVRO"),
        (Answer("AVRO", "{"), "schema 7: is not a schema of Avro"),
        (Answer("AVRO", '{"type":"nothing"}'), "schema 7: is not a schema of Avro"),
    ):
        assert of_serp(good, answers={"7": answer}) == Malformed("registry", detail)
    late = of_serp(good, answers={"8": unknown})
    assert late.reason == "registry"
    assert "10000 ids" in late.detail


def nested(depth):
    schema = "int"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def chain(n):
    """Named types, each of which has the next one twice: 2^n values of no bytes at the end."""
    fields = [{"name": "a", "type": "null"}]
    for at in range(n):
        inner = {"type": "record", "name": f"R{at}", "fields": fields}
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{at}"}]
    return fields[0]["type"]


def of_field(kind):
    return json.dumps({"type": "record", "name": "T", "fields": [{"name": "f", "type": kind}]})


FIXED = {"type": "fixed", "name": "F"}
TREE = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
HOSTILE = {
    "recursive": (json.dumps(TREE), "N is recursive"),
    "recursive by reference": (of_field({"type": "array", "items": TREE}), "N is recursive"),
    "nulls without bytes": (of_field({"type": "array", "items": "null"}), "null outside of a"),
    "empty records": (
        of_field({"type": "map", "values": {"type": "record", "name": "E", "fields": []}}),
        "E takes no bytes",
    ),
    "no bytes": (of_field({"type": "array", "items": {**FIXED, "size": 0}}), "F takes no bytes"),
    "deep": (of_field(nested(62)), "nested more than 64 deep"),
    "very deep": (of_field(nested(400)), "nested more than 64 deep"),
    "doubling": (json.dumps(chain(20)), "null outside of a union"),
    "long chain": (json.dumps(chain(70)), "nested more than 64 deep"),
    "huge scale": (
        of_field({"type": "bytes", "logicalType": "decimal", "precision": 9**9, "scale": 9**9}),
        "scale beyond 100",
    ),
    "not a text": ("\ud800", "is not a schema of Avro"),
    "a number": ("7", "is not a schema of Avro"),
    **{
        f"a size of {size}": (of_field({**FIXED, "size": size}), "has a size that is not from 0 to")
        for size in (10**15, 2**70, -1, -(2**44), "3", 2.5, None, [1], True)
    },
    "a number as name": (of_field("int").replace('"f"', "1"), "has a name that is not a text"),
    "many symbols": (
        of_field({"type": "enum", "name": "E", "symbols": [f"s{n}" for n in range(30_000)]}),
        None,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_before_it_reads_a_record(name):
    schema, refusal = HOSTILE[name]
    text = '[judgments]\nformat = "avro"\nregistry = "http://r"\ntrace_id = "f"\nnode_id = "f"\n'
    run = mapper(text + 'candidate_id = "f"\ngrade = "f"\n', {"1": Answer("AVRO", schema)})
    begun = time.process_time()
    for payload in (b"", b"\x02" * 300_000, b"\xff" * 300_000, b"\xfe\xff\xff\xff\xff\x7f\x00" * 9):
        found = run(Record(b"\x00\x00\x00\x00\x01" + payload))
        assert isinstance(found, Malformed)
        assert refusal is None or (found.reason, refusal in found.detail) == ("registry", True)
    assert time.process_time() - begun < 30  # seconds of CPU: no bound of speed


def damaged(rng, value):
    value = bytearray(value)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(value) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(value):
            value[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(value):
            value[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            value[at:at] = rng.randbytes(rng.randrange(1, 12))
        elif kind == 3:
            del value[at : at + rng.randrange(1, 12)]
        else:
            begin = rng.randrange(len(value) + 1)
            value[at:at] = value[begin : begin + 40]
    return bytes(value)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("", "", None),
        ('"session.id"', '"session"', "rankings.trace_id: session is shop.Session; needed: text"),
        ('"session.id"', '"session.no"', "trace_id: session.no is not in the schema; needed: text"),
        ('"session.id"', '["session.no", "key:"]', None),  # the key may be there
        ('"session.id"', '["session.no", "query"]', None),
        ('"session.id"', '"session.raw"', "trace_id: session.raw is fixed; needed: text"),
        ('unit = "us"', 'unit = "iso"', "at is long; needed: a text in ISO 8601"),
        ('= "text"', '= "hits"', "rankings.query: hits is repeated shop.Hit; needed: text"),
        ('= "text"', '= "no"', None),  # optional, perhaps of a later schema
        ('each = "hits"', 'each = "labels"', "rows.each: labels is map; needed: an array"),
        ('each = "hits"', 'each = "no"', "rows.each: no is missing; needed: an array"),
        ('each = "hits"', 'each = "text"', None),  # a text of JSON
        ('"labels.locale"', '"labels"', "segments.locale: labels is map; needed: text"),
        ('score = "score"', 'score = "seen"', "rows.score: seen is boolean; needed: a number"),
        ('score = "score"', 'score = "sku"', None),  # a number or a text
        ('score = "score"', 'score = "scor"', None),  # the rank is there
        (f'score = "score"\n{RANK}', 'score = "scor"', "rows.score: hits[0].scor is not in the"),
        (f'score = "score"\n{RANK}', 'rank = "pos"', "rows.rank: hits[0].pos is not in the schema"),
        (f'score = "score"\n{RANK}', 'score = "a"\nrank = "b"', "rows.score: hits[0].a is not in"),
        (f'score = "score"\n{RANK}', "rank = { const = 1 }", None),
        ('"price" }', '"no" }', None),  # the only feature, perhaps of a later schema
        ('"price" }', '"price", age = "no" }', "features.age: hits[0].no is not in the schema"),
        ('"price" }', '"session" }', None),
        ('exposed = "seen"', 'exposed = "position"', "exposed: position is int; needed: a boolean"),
        ('path = "position"', 'path = "price"', "rank: price is decimal; needed: an integer"),
    ],
)
def test_a_schema_that_does_not_fit_is_one_error_in_the_log(old, new, text):
    assert old in RANKINGS
    with capture_logs() as logs:
        found = mapper(RANKINGS.replace(old, new), {"7": Answer("AVRO", SERP)})
        for _ in range(3):
            found(Record(avro(7, SERP, serp())))
    events = [each for each in logs if each["event"] == "schema_does_not_fit"]
    if text is None:
        assert not events
        return
    (event,) = events
    assert (event["log_level"], event["schema_id"]) == ("error", "7")
    assert text in event["error"]


def test_a_path_through_many_types_is_compared_quickly():
    width, layers = 20, 7
    references = []
    for layer in range(layers, 0, -1):
        below = [f"R{layer + 1}_{n}" for n in range(width)] if layer < layers else "string"
        fields = [{"name": "x", "type": below}]
        references += [
            ("", json.dumps({"type": "record", "name": f"R{layer}_{n}", "fields": fields}))
            for n in range(width)
        ]
    fields = [{"name": "x", "type": [f"R1_{n}" for n in range(width)]}]
    root = json.dumps({"type": "record", "name": "R", "fields": fields})
    path = ".".join("x" * (layers + 1))
    text = '[judgments]\nformat = "avro"\nregistry = "http://r"\n'
    text += (
        f'trace_id = "{path}"\nnode_id = "{path}"\ncandidate_id = "{path}"\ngrade = "{path}.x"\n'
    )
    ((_, mapping),) = read_document(text, "m.toml").logs.items()
    found = unfit(Answer("AVRO", root, references=tuple(references)), mapping)
    assert found is not None
    assert found.startswith("judgments.grade: ")


def test_random_schemas_are_used_or_refused():
    rng = random.Random(5)
    text = '[judgments]\nformat = "avro"\nregistry = "http://r"\ntrace_id = "f"\nnode_id = "f"\n'
    text += 'candidate_id = "f"\ngrade = "f"\n'
    found = set()
    for _ in range(sized(3_000, quick=400)):
        schema = damaged(rng, rng.choice((SERP, CLICK)).encode()).decode("utf-8", "replace")
        run = mapper(text, {"1": Answer("AVRO", schema)})
        outcome = run(Record(b"\x00\x00\x00\x00\x01" + rng.randbytes(rng.randrange(60))))
        assert isinstance(outcome, Malformed | LeftOut)
        found.add(outcome.reason)
    assert found >= {"decode", "registry"}


def test_avro_requires_a_registry_and_json_has_none():
    for members, error in (
        ('format = "avro"', "format is avro beside no schema. Accepted: registry."),
        ('registry = "http://r"', "format is json beside registry. Accepted: json."),
        (
            'format = "avro"\nregistry = "http:/" "/user:secret@r"'.replace('" "', ""),
            "user and password are settings",
        ),
        ('format = "avro"\nregistry = "r:8081"', "is not the address"),
        ('format = "arrow"', 'format is "arrow"'),
    ):
        text = f'[judgments]\n{members}\ntrace_id = "t"\nnode_id = "n"\ncandidate_id = "c"\n'
        with pytest.raises(MappingRefused, match=error) as refused:
            read_document(text + 'grade = "g"\n', "m.toml")
        assert "secret" not in str(refused.value)
    two = CLICKS.replace("http://registry", "http://other") + RANKINGS
    with pytest.raises(MappingRefused, match="one registry for both"):
        read_document(two, "m.toml")


def test_a_moved_registry_is_the_same_mapping():
    moved = RANKINGS.replace("http://registry", "https://elsewhere:8081/api/")
    document = read_document(moved, "m.toml")
    assert document.registry == "https://elsewhere:8081/api"
    assert document.hash == read_document(RANKINGS, "m.toml").hash


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("evaluator.mapping.formats.find_spec", lambda _: None)
    with pytest.raises(MappingRefused, match=r"pip install '\.\[avro\]'"):
        mapper(CLICKS, {})


def test_the_writer_of_these_tests_agrees_with_the_library():
    stream = io.BytesIO(avro(7, SERP, serp())[5:])
    assert fastavro.schemaless_reader(stream, json.loads(SERP), None)["query"] == 71

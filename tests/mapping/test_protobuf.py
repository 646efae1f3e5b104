"""Protobuf records against their JSON twins, their frames, damaged records, unusual schemas."""

import json
import random
from base64 import b64encode

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.json_format import MessageToDict

from evaluator.mapping.document import MappingRefused, read_document
from evaluator.mapping.framing import HEADER
from evaluator.mapping.messages import messages_of
from evaluator.mapping.record import LeftOut, Record
from evaluator.mapping.schemas import Answer
from evaluator.wire.messages.malformed import Malformed
from tests.mapping.protobuf_world import add_map, add_message, classes_of, framed, new_file
from tests.mapping.test_framed import GUID, damaged
from tests.repeats import sized

RANKINGS = """
[rankings]
format = "protobuf"
descriptor_set = "shop.desc"
message = "shop.Serp"
where = { kind = ["SERP", 7] }
trace_id = ["who.session", "who.device"]
node_id = "number"
timestamp_ms = { path = "at", unit = "us" }
model = "labels.model"
variant = "counts.12.arm"
query = "text"
segments = { locale = "labels.locale" }
[rankings.rows]
each = "hits"
candidate_id = ["sku", "name"]
score = "score"
rank = { path = "position", add = 1 }
features = { price = "deep.price" }
exposed = "seen"
"""
JUDGMENTS = """
[judgments]
format = "protobuf"
descriptor_set = "shop.desc"
message = "shop.Click"
trace_id = "t"
node_id = "n"
timestamp_ms = { path = "at", unit = "ns" }
[judgments.rows]
each = "c"
judgment_id = "j"
candidate_id = "i"
grade = { path = "a", table = { click = 1, BUY = 3 } }
"""


def shop(syntax="proto3"):
    file = new_file(syntax)
    kinds = file.enum_type.add(name="Kind")
    for number, name in enumerate(("AD", "SERP", "BUY")):
        kinds.value.add(name=name, number=number)
    kinds.options.allow_alias = True
    kinds.value.add(name="click", number=2)
    add_message(file, "Serp", """
        enum:.shop.Kind kind = 1
        oneof:who_is .shop.Who who = 2
        oneof:who_is string nobody = 3
        int64 number = 4
        int64 at = 5
        optional string text = 6
        repeated .shop.Hit hits = 7
        bytes raw = 9
        .shop.Serp parent = 10
        .shop.Missing other = 12
    """)  # fmt: skip
    del file.message_type[0].field[-1]
    add_map(file.message_type[0], "labels", 8, "string", "string")
    add_map(file.message_type[0], "counts", 11, "int32", ".shop.Arm")
    add_message(file, "Arm", "string arm = 1")
    add_message(file, "Who", "string session = 1\nstring device = 2")
    add_message(file, "Hit", """
        oneof:id uint64 sku = 1
        oneof:id string name = 2
        double score = 3
        int32 position = 4
        .shop.Deep deep = 5
        bool seen = 6
    """)  # fmt: skip
    add_message(file, "Deep", "double price = 1\n.shop.Deep deep = 2")
    add_message(file, "Click", """
        .google.protobuf.StringValue t = 1
        string n = 2
        .google.protobuf.Timestamp at = 3
        repeated .shop.Action c = 4
    """)  # fmt: skip
    add_message(file, "Action", "int32 j = 1\nstring i = 2\nenum:.shop.Kind a = 3")
    return file


SHOP = shop()
CLASSES = classes_of(SHOP)


def set_of(*files):
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


@pytest.fixture
def mapper(tmp_path):
    def made(text=RANKINGS, file=SHOP, answers=None):
        (tmp_path / "shop.desc").write_bytes(file if isinstance(file, bytes) else set_of(file))
        ((_, mapping),) = read_document(text, str(tmp_path / "m.toml")).logs.items()
        return messages_of(mapping, answers or {})

    return made


def of_registry(text):
    given = 'descriptor_set = "shop.desc"\n'
    name = text.split("message = ")[1].splitlines()[0]
    return text.replace(given, 'registry = "http://registry"\n').replace(f"message = {name}\n", "")


def answer(file=SHOP, references=()):
    return Answer("PROTOBUF", b64encode(file.SerializeToString()).decode(), tuple(references))


def serp(**members):
    hits = [
        {"sku": 12, "score": 0.5, "deep": {"price": 12.5}, "seen": True},
        {"name": "b", "score": 0.25, "position": 1, "deep": {"price": 0}},
    ]
    given = {
        "kind": 1, "who": {"session": "s"}, "number": -71, "at": 1_769_846_400_000_999,
        "labels": {"locale": "de", "model": "shop", "x": "y"}, "counts": {12: {"arm": "B"}, 3: {}},
        "hits": hits, "raw": b"\xff", "parent": {"parent": {"number": 1}},
    }  # fmt: skip
    return CLASSES["Serp"](**(given | members))


def click(n=2):
    rows = [{"j": at, "i": f"p{at}", "a": ("AD", "SERP", "BUY")[2 - at % 2]} for at in range(n)]
    value = CLASSES["Click"](n="7", c=rows)
    value.t.value = "s"
    value.at.seconds, value.at.nanos = 1_769_846_400, 1_999_999
    return value


def test_a_record_becomes_the_message_of_its_fields(mapper):
    (message,) = mapper()(Record(serp().SerializeToString()))
    assert json.loads(message) == {
        "schema_version": 1, "trace_id": "s", "node_id": "-71", "timestamp_ms": 1769846400000,
        "model": "shop", "variant": "B", "candidate_ids": ["12", "b"], "scores": [0.5, 0.25],
        "ranks": [1, 2], "feature_names": ["price"], "features": [[12.5], [0.0]],
        "exposed": [True, False], "segments": {"locale": "de"},
    }  # fmt: skip
    with_text = serp(text="", who={"device": "d"}, hits=[])
    (message,) = mapper()(Record(with_text.SerializeToString()))
    found = json.loads(message)
    assert found["query"] == ""  # it has presence, so it is there
    assert found["trace_id"] == "d"  # an empty text without presence is missing
    left_out = mapper()(Record(serp(kind=0).SerializeToString()))
    assert left_out == LeftOut('where: kind is "AD"', 1769846400000)
    unknown = serp(kind=7)  # of a later schema: its number
    assert isinstance(mapper()(Record(unknown.SerializeToString())), list)
    (message,) = mapper(JUDGMENTS)(Record(click().SerializeToString()))
    assert json.loads(message) == {
        "schema_version": 1, "trace_id": "s", "node_id": "7", "timestamp_ms": 1769846400001,
        "judgment_id": "0", "grades": {"p0": 3.0},
    }  # fmt: skip
    refused = mapper()(Record(serp(who={}).SerializeToString()))
    assert (refused.reason, "trace_id" in refused.detail) == ("mapping", True)
    infinite = serp(hits=[{"sku": 1, "score": float("inf"), "deep": {}}])
    assert mapper()(Record(infinite.SerializeToString())).reason == "mapping"


def test_the_last_member_of_a_oneof_counts(mapper):
    value = serp().SerializeToString() + CLASSES["Serp"](nobody="x").SerializeToString()
    assert not CLASSES["Serp"].FromString(value).HasField("who")
    assert mapper()(Record(value)).reason == "mapping"


def random_serp(chance, later):
    hits = []
    for position in range(chance.choice([0, 1, 3])):
        hit = {"score": chance.choice([0.0, -1.5]), "position": position, "seen": position > 0}
        hit |= chance.choice([{"sku": chance.randrange(2)}, {"name": f"n{position}"}, {}])
        hit |= chance.choice([{"deep": {"price": 2.0}}, {"deep": {}}, {"deep": {"price": 2.0}}])
        hits.append(hit)
    given = {
        "kind": chance.choice([1, 1, later, 0]), "hits": hits, "number": chance.choice([0, 5, 2**62]),
        "who": chance.choice([{"session": "s"}, {"device": "d"}]), "at": chance.choice([0, 10**15]),
        "labels": chance.choice([{}, {"locale": "x", "other": "y"}, {"model": "m"}]),
        "counts": chance.choice([{}, {12: {"arm": "A"}}, {1: {"arm": "C"}}]),
        "text": chance.choice(["x", ""]),
    }  # fmt: skip
    return {name: each for name, each in given.items() if chance.random() < 0.9}


@pytest.mark.parametrize("syntax", ["proto3", "proto2", "editions"])
def test_random_records_become_the_messages_of_their_json_twins(mapper, syntax):
    """The twin is written by the JSON format of Protobuf itself."""
    file = shop(syntax)
    if syntax == "editions":
        file.edition = descriptor_pb2.EDITION_2023
        file.options.features.field_presence = descriptor_pb2.FeatureSet.IMPLICIT
    if syntax != "proto3":
        for message in file.message_type:
            for field in message.field:
                if field.proto3_optional:
                    field.ClearField("proto3_optional")
                    field.ClearField("oneof_index")
                    if syntax == "editions":
                        field.options.features.field_presence = descriptor_pb2.FeatureSet.EXPLICIT
            kept = [each for each in message.oneof_decl if each.name[0] != "_"]
            del message.oneof_decl[:]
            message.oneof_decl.extend(kept)
    kind = classes_of(file)["Serp"]
    of_protobuf, chance, outcomes = mapper(file=file), random.Random(4), set()
    of_json = mapper(RANKINGS.replace('format = "protobuf"\ndescriptor_set = "shop.desc"\n', "")
                     .replace('message = "shop.Serp"\n', ""))  # fmt: skip
    for _ in range(sized(1_500, quick=200)):
        value = kind(**random_serp(chance, later=1 if syntax == "proto2" else 7))
        twin = MessageToDict(
            value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        without_empty(twin, keep=() if syntax == "proto2" else ("text", "name"))
        given = of_protobuf(Record(value.SerializeToString()))
        expected = of_json(Record(json.dumps(twin).encode()))
        if isinstance(expected, Malformed):
            expected = given = expected.reason, given.reason
        assert given == expected, twin
        outcomes.add(type(expected))
    assert outcomes >= {list, LeftOut}


@pytest.mark.parametrize("by_default", [False, True])
def test_delimited_messages_are_refused(mapper, by_default):
    file = shop("editions")
    file.edition = descriptor_pb2.EDITION_2023
    fields = [field for message in file.message_type for field in message.field]
    hits = next(field for field in fields if field.name == "hits")
    of = file.options if by_default else hits.options
    of.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
    with pytest.raises(MappingRefused, match="is delimited, which is not supported"):
        mapper(file=file)


def without_empty(value, keep):
    """An empty text without presence counts as missing; those in *keep* have presence."""
    for name, each in list(value.items()) if isinstance(value, dict) else enumerate(value):
        if isinstance(each, dict | list):
            without_empty(each, keep)
        elif each == "" and keep and name not in keep:
            del value[name]


def test_records_may_be_framed_and_name_their_message(mapper):
    payload, plain = click().SerializeToString(), mapper(JUDGMENTS)
    expected, at = plain(Record(payload)), 5  # of Click among the messages of the file
    assert isinstance(expected, list)
    registry = mapper(of_registry(JUDGMENTS), answers={"7": answer(), GUID: answer()})
    for run in (plain, registry):
        for number in (7, GUID):
            assert run(Record(framed(number, payload, (at,)))) == expected
            head = framed(number, b"", (at,))
            assert run(Record(payload, None, [(HEADER, head)])) == expected
    wrong = plain(Record(framed(7, payload)))
    assert wrong == Malformed("decode", "the frame has the message [0]; shop.Click is [5]")
    assert registry(Record(payload)).reason == "decode"  # not framed
    for indexes, detail in (((9,), "has no message [9]"), ((0, 5), "has no message [0, 5]")):
        assert detail in registry(Record(framed(7, payload, indexes))).detail
    for tail in (b"", b"\x04", b"\x04\x02", b"\x80" * 9, b"\x01", b"\xfe\x01", b"\x02\x01"):
        for run in (plain, registry):
            found = run(Record(framed(7, b"")[:5] + tail))
            assert (found.reason, "indexes" in found.detail) == ("decode", True), tail
    nested = new_file()
    add_message(add_message(nested, "Outer", "string x = 1"), "Click", "string n = 2")
    run = mapper(of_registry(JUDGMENTS), answers={"7": answer(nested)})
    assert run(Record(framed(7, b"\x12\x01a", (0, 0)))).reason == "mapping"


def test_a_schema_of_a_registry_may_refer_to_others(mapper):
    parts = [SHOP, new_file()]
    first = descriptor_pb2.FileDescriptorProto.FromString(SHOP.SerializeToString())
    click_type = first.message_type[5]
    parts[1].name = "click.proto"
    parts[1].dependency[:] = ["shop.proto", "none.proto"]  # not needed, and not there
    parts[1].message_type.add().CopyFrom(click_type)
    del first.message_type[5]
    answers = {"7": answer(parts[1], [("shop.proto", answer(first).schema)])}
    run = mapper(of_registry(JUDGMENTS), answers=answers)
    payload = click().SerializeToString()
    assert run(Record(framed(7, payload))) == mapper(JUDGMENTS)(Record(payload))
    alone = mapper(of_registry(JUDGMENTS), answers={"7": answer(parts[1])})
    detail = "schema 7: shop.Action is not in the descriptors"
    assert alone(Record(framed(7, payload))) == Malformed("registry", detail)


def test_schemas_that_cannot_be_used_are_refused(mapper):
    payload = framed(7, click().SerializeToString(), (5,))
    for given, detail in (
        (Answer("AVRO", "{}"), "is of type AVRO, not PROTOBUF"),
        (Answer("PROTOBUF", 'syntax = "proto3";'), "is not a serialized descriptor"),
        (Answer("PROTOBUF", "AAAA"), "is not a serialized descriptor"),
        (Answer("PROTOBUF", ""), None),
    ):
        run = mapper(of_registry(JUDGMENTS), answers={"7": given})
        found = run(Record(payload))
        assert detail is None or found == Malformed("registry", f"schema 7: {detail}")
    later = shop()
    later.message_type[5].field[1].name = "renamed"
    run = mapper(of_registry(JUDGMENTS), answers={"7": answer(later)})
    assert run(Record(payload)).reason == "mapping"  # n is missing


TYPES = [
    (RANKINGS, 'query = "text"', 'query = "raw"', "rankings.query: raw is bytes; needed: text"),
    (
        RANKINGS,
        'query = "text"',
        'query = "hits"',
        "query: hits is repeated shop.Hit; needed: text",
    ),
    (RANKINGS, 'query = "text"', 'query = "parent"', "query: parent is shop.Serp; needed: text"),
    (RANKINGS, 'query = "text"', 'query = "labels"', "query: labels is shop.Serp.LabelsEntry; n"),
    (
        RANKINGS,
        'query = "text"',
        'query = "hits.name"',
        "hits.name: hits is repeated; needed: an in",
    ),
    (
        RANKINGS,
        'query = "text"',
        'query = "hits[0].score"',
        "hits.0..score is double; needed: text",
    ),
    (RANKINGS, 'query = "text"', 'query = "text[0]"', "text is not repeated"),
    (RANKINGS, 'score = "score"', 'score = "name"', "rows.score: name is string; needed: a number"),
    (RANKINGS, 'path = "position"', 'path = "score"', "rank: score is double; needed: an integer"),
    (RANKINGS, 'exposed = "seen"', 'exposed = "sku"', "exposed: sku is uint64; needed: a boolean"),
    (RANKINGS, '"deep.price"', '"deep.deep"', "price: deep.deep is shop.Deep; needed: a number"),
    (
        RANKINGS,
        'each = "hits"',
        'each = "hits[0]"',
        "rows.each: hits.0. is .*shop.Hit; needed: repeated",
    ),
    (RANKINGS, 'unit = "us"', 'unit = "iso"', "at is int64; needed: a text in ISO 8601"),
    (
        JUDGMENTS,
        'unit = "ns"',
        'unit = "ms"',
        'at is google.protobuf.Timestamp; needed: unit = "ns"',
    ),
    (JUDGMENTS, 'node_id = "n"', 'node_id = "at"', "Timestamp; needed: text"),
    (JUDGMENTS, 'path = "a", table', 'path = "j", add = 1, table', None),
    (RANKINGS, 'query = "text"', 'query = "hits[0].name"', None),
    (RANKINGS, 'query = "text"', 'query = "kind"', None),
    (RANKINGS, 'score = "score"', 'score = "position"', None),
]


def test_a_path_whose_field_never_fits_is_refused_at_the_start(mapper):
    for text, old, new, expected in TYPES:
        assert old in text
        if expected is None:
            mapper(text.replace(old, new, 1))
            continue
        with pytest.raises(MappingRefused, match=expected):
            mapper(text.replace(old, new, 1))


def test_parallel_arrays_are_repeated_fields(mapper):
    file = shop()
    add_message(file, "Lists", "string t = 1\nrepeated string ids = 2\nrepeated double s = 3")
    text = '[rankings]\nformat = "protobuf"\ndescriptor_set = "shop.desc"\nmessage = "shop.Lists"\n'
    text += 'trace_id = "t"\nnode_id = "t"\n[rankings.rows]\ncandidate_id = "ids"\nscore = "s"\n'
    mapper(text, file)
    for old, new, expected in (
        ('"ids"', '"t"', "candidate_id: t is string; needed: text, repeated"),
        ('"s"', '"ids"', "score: ids is repeated string; needed: a number, repeated"),
    ):
        with pytest.raises(MappingRefused, match=expected):
            mapper(text.replace(old, new), file)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"shop.Serp"', '"shop.Sero"', "has no message shop.Sero; it has shop.Serp"),
        ('query = "text"', 'query = "txt"', "shop.Serp has no field txt; it has text."),
        ('score = "score"', 'score = "scare"', "shop.Hit has no field scare; it has score."),
        ('query = "text"', 'query = "text.x"', "text is not a message, so it has no x."),
        ('"shop.desc"', '"no.desc"', "m.toml:4: rankings.descriptor_set cannot be read: "),
        ('message = "shop.Serp"', "", "format is protobuf beside descriptor_set. Accepted: registry; or descriptor_set and message."),
        ('message = "shop.Serp"', 'message = "shop.Serp"\nregistry = "http://r"', "beside registry and descriptor_set and message"),
        ('message = "shop.Serp"', 'message = "shop.Serp"\nenvelope = "cloudevents"', "beside format = protobuf. Accepted: none, debezium."),
    ],
)  # fmt: skip
def test_a_mapping_that_does_not_fit_its_descriptors_is_refused(mapper, old, new, expected):
    assert old in RANKINGS
    with pytest.raises(MappingRefused) as refused:
        mapper(RANKINGS.replace(old, new))
    assert expected in str(refused.value)


def test_descriptor_sets_that_cannot_be_used_are_refused(mapper):
    alone = new_file()
    alone.message_type.add().CopyFrom(SHOP.message_type[0])
    group = shop()
    group.message_type[0].field[3].type = 10
    doubled = shop()
    doubled.message_type[0].field[3].number = 5
    for file, expected in (
        (b"\x0a\xff", "is not a file of protoc"),
        (b"", "has no message shop.Serp"),
        (set_of(alone), "is not in the descriptors"),
        (set_of(group), "number is a group"),
        (set_of(doubled), "is not accepted by the protobuf package"),
    ):
        with pytest.raises(MappingRefused, match=expected):
            mapper(file=file)


def test_the_hash_is_of_the_descriptors_not_of_the_name_of_their_file(tmp_path):
    (tmp_path / "shop.desc").write_bytes(set_of(SHOP))
    (tmp_path / "moved.desc").write_bytes(set_of(SHOP))
    name = str(tmp_path / "m.toml")
    plain = read_document(RANKINGS, name).hash
    assert read_document(RANKINGS.replace("shop.desc", "moved.desc"), name).hash == plain
    (tmp_path / "shop.desc").write_bytes(set_of(shop("proto2")))
    assert read_document(RANKINGS, name).hash != plain


def test_paths_of_change_events_start_in_after(mapper):
    file = shop()
    add_message(file, "Change", ".shop.Click before = 1\n.shop.Click after = 2\nstring op = 3")
    change = classes_of(file)["Change"]
    text = JUDGMENTS.replace('"shop.Click"', '"shop.Change"\nenvelope = "debezium"')
    run = mapper(text, file)
    value = change(op="c")
    value.after.MergeFromString(click().SerializeToString())
    expected = mapper(JUDGMENTS)(Record(click().SerializeToString()))
    assert run(Record(value.SerializeToString())) == expected
    assert isinstance(run(Record(change(op="d").SerializeToString())), LeftOut)


def test_a_schema_of_another_project_is_read(mapper):
    """That of OTLP: recursive, with maps of unions, made by protoc."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    from opentelemetry.proto.common.v1 import common_pb2
    from opentelemetry.proto.resource.v1 import resource_pb2
    from opentelemetry.proto.trace.v1 import trace_pb2

    modules = (common_pb2, resource_pb2, trace_pb2, trace_service_pb2)
    files = [descriptor_pb2.FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb) for each in modules]  # fmt: skip
    text = """
    [rankings]
    format = "protobuf"
    descriptor_set = "shop.desc"
    message = "opentelemetry.proto.collector.trace.v1.ExportTraceServiceRequest"
    trace_id = "resource_spans[0].resource.attributes[0].value.string_value"
    node_id = { const = "n" }
    timestamp_ms = { path = "resource_spans[0].scope_spans[0].spans[0].end_time_unix_nano", unit = "ns" }
    [rankings.rows]
    each = "resource_spans[0].scope_spans[0].spans"
    candidate_id = "attributes[1].value.array_value.values[0].kvlist_value.values[0].key"
    """
    request = trace_service_pb2.ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.add(key="a").value.string_value = "t"
    span = of_resource.scope_spans.add().spans.add(end_time_unix_nano=5_999_999)
    span.attributes.add(key="a")
    inner = span.attributes.add(key="b").value.array_value.values.add()
    inner.kvlist_value.values.add(key="id")
    (message,) = mapper(text, set_of(*files))(Record(request.SerializeToString()))
    found = json.loads(message)
    assert (found["trace_id"], found["timestamp_ms"], found["candidate_ids"]) == ("t", 5, ["id"])


@pytest.mark.slow(alone=False)
def test_many_elements_are_refused_and_bytes_without_a_name_are_not_decoded(mapper):
    hit = b"\x3a\x00"  # field 7, no bytes
    many = mapper()(Record(hit * 100_001))
    assert many == Malformed("limit", "more than 100000 elements of repeated fields")
    some = mapper()(Record(serp().SerializeToString() + hit * 90_000))
    assert some.reason == "mapping"
    parents = b""
    for _ in range(300):  # nested deeper than the package allows
        parents = b"\x52" + bytes([0x80 | len(parents) & 0x7F, len(parents) >> 7]) + parents
    good = serp().SerializeToString()
    assert mapper()(Record(good + parents)) == mapper()(Record(good))
    deep = mapper(RANKINGS.replace('price = "deep.price"', 'price = "deep.deep.deep.price"'))
    (message,) = deep(Record(good))
    assert "features" not in json.loads(message)


@pytest.mark.slow(alone=False)
def test_random_schemas_are_used_or_refused(mapper):
    rng, found = random.Random(5), set()
    payload = framed(7, click().SerializeToString(), (5,))
    for _ in range(sized(1_500, quick=700)):
        schema = b64encode(damaged(rng, SHOP.SerializeToString())).decode()
        run = mapper(of_registry(JUDGMENTS), answers={"7": Answer("PROTOBUF", schema)})
        outcome = run(Record(payload))
        found.add(outcome.reason if isinstance(outcome, Malformed) else type(outcome))
    assert found >= {"decode", "registry", list}


def test_a_missing_package_is_named(monkeypatch, mapper):
    monkeypatch.setattr(
        "evaluator.mapping.formats.find_spec", lambda name: name == "google" or None
    )
    with pytest.raises(MappingRefused, match=r"pip install '\.\[protobuf\]'"):
        mapper()

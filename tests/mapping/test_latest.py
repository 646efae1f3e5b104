"""The latest schemas of topics with a mapping, before a record refers to one."""

import json
from base64 import b64encode

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.registry.client import SchemaRegistry
from evaluator.mapping import latest
from evaluator.mapping.document import read_document
from evaluator.mapping.latest import comparisons, log_comparisons
from tests.mapping.framed_world import CLICK, MAPPING, SERP
from tests.mapping.protobuf_world import add_message, new_file, world_file
from tests.mapping.registry import FakeRegistry

TOPICS = {"rankings": "serps", "judgments": "clicks"}


@pytest.fixture
def fake():
    with FakeRegistry() as registry:
        yield registry


async def compared(fake, form="avro", old="", new=""):
    """Outcomes, and their texts, by subject."""
    text = MAPPING.format(prefix="", format=form, url=fake.url)
    assert old in text
    mappings = read_document(text.replace(old, new), "m.toml").logs.values()
    registry = SchemaRegistry(fake.url, decodes_protobuf=form == "protobuf")
    found = await comparisons(registry, mappings, TOPICS)
    return {subject: (each.severity, each.what) for subject, each in found}


def register(fake, topic, schema):
    return fake.register(f"{topic}-value", json.dumps(schema))


async def test_the_latest_version_is_compared(fake):
    register(fake, "serps", {**SERP, "fields": []})
    register(fake, "serps", SERP)
    register(fake, "clicks", CLICK)
    register(fake, "clicks", {**CLICK, "fields": CLICK["fields"][1:]})
    found = await compared(fake)
    assert found["serps-value"] == ("ok", "The latest schema of serps-value fits the mapping.")
    severity, what = found["clicks-value"]
    assert severity == "error"
    assert "judgments.trace_id: session is not in the schema; needed: text." in what
    assert fake.asked == [f"/subjects/{topic}-value/versions/latest" for topic in TOPICS.values()]


async def test_a_missing_subject_is_a_note(fake):
    register(fake, "serps", SERP)
    found = await compared(fake)
    assert found["clicks-value"][0] == "ok"
    assert "no subject clicks-value" in found["clicks-value"][1]


@pytest.mark.parametrize(
    ("schema", "kind", "text"),
    [
        ("{}", "JSON", "is of type JSON, not AVRO"),
        ("{}", "AVRO", "is not a schema of Avro"),
        (" " * (300 << 10), "AVRO", "has more than 262144 bytes"),
    ],
)
async def test_a_schema_that_cannot_be_used_does_not_fit(fake, schema, kind, text):
    fake.register("serps-value", schema, kind)
    severity, what = (await compared(fake))["serps-value"]
    assert (severity, text in what) == ("error", True), what


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (503, "answers with 503"),
        pytest.param("slow", "in 0 s", marks=pytest.mark.slow(alone=False)),
    ],
)
async def test_an_unavailable_registry_is_a_warning(fake, fault, text, monkeypatch):
    monkeypatch.setattr(latest, "SECONDS", 0.3 if fault == "slow" else 20.0)
    register(fake, "serps", SERP)
    fake.fault = fault
    found = await compared(fake)
    assert {severity for severity, _ in found.values()} == {"warning"}
    assert text in found["serps-value"][1]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("", "", None),
        ('query = "text"', 'query = "no"', None),  # optional, perhaps of a later schema
        ('= "session"\nnode_id = "number"\ntimestamp_ms = "at"\nq', '= "who"\nnode_id = "number"\ntimestamp_ms = "at"\nq', "trace_id: who is not in the schema; needed: text"),
        ('score = "score"', 'score = "name"', "rankings.rows.score: name is string; needed: a number"),
        ('score = "score"', 'score = "boxed"', None),
        ('= "text"', '= "hits"', "rankings.query: hits is repeated shop.Hit; needed: text"),
        ('= "text"', '= "text.x"', None),
        ('each = "hits"', 'each = "when"', "rows.each: when is google.protobuf.Timestamp; needed: an array"),
        ('timestamp_ms = "at"\nquery', 'timestamp_ms = "when"\nquery', 'when is google.protobuf.Timestamp; needed: unit = "ns"'),
        ('timestamp_ms = "at"\nquery', 'timestamp_ms = { path = "when", unit = "ns" }\nquery', None),
    ],
)  # fmt: skip
async def test_schemas_of_protobuf_are_compared_by_their_messages(fake, old, new, text):
    file = new_file()
    hit = ".google.protobuf.DoubleValue boxed = 3\nstring name = 4\n"
    add_message(file, "Hit", hit + "int64 sku = 1\ndouble score = 2\ndouble price = 5")
    add_message(file, "Serp", """
        string session = 1
        int32 number = 2
        int64 at = 3
        optional string text = 4
        repeated .shop.Hit hits = 5
        .google.protobuf.Timestamp when = 6
    """)  # fmt: skip
    for topic, of in (("serps", file), ("clicks", world_file())):
        serialized = b64encode(of.SerializeToString()).decode()
        fake.register(f"{topic}-value", "", "PROTOBUF", serialized=serialized)
    found = await compared(fake, "protobuf", old, new)
    assert found["clicks-value"][0] == "ok"
    severity, what = found["serps-value"]
    if text is None:
        assert severity == "ok", what
        return
    assert severity == "error"
    assert "the mapping: shop.Serp: " in what
    assert text in what


async def test_schemas_that_do_not_fit_or_are_unknown_are_logged(fake):
    register(fake, "serps", CLICK)
    with capture_logs() as logs:
        log_comparisons(await comparisons_of(fake))
        fake.fault = "reset"
        log_comparisons(await comparisons_of(fake))
    events = [(each["event"], each["log_level"], each["subject"]) for each in logs]
    assert events == [
        ("schema_does_not_fit", "error", "serps-value"),
        ("schema_not_compared", "warning", "serps-value"),
        ("schema_not_compared", "warning", "clicks-value"),
    ]


async def comparisons_of(fake):
    text = MAPPING.format(prefix="", format="avro", url=fake.url)
    mappings = read_document(text, "m.toml").logs.values()
    return await comparisons(SchemaRegistry(fake.url), mappings, TOPICS)

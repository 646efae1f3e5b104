"""Records of Confluent's serializers, with schemas in a real registry, and their twins."""

import asyncio
import contextlib
import json

import pytest
from google.protobuf import descriptor_pb2

from evaluator.cli import main
from tests.kafka.process import Worker
from tests.kafka.test_formats import send_all
from tests.kafka.test_mapping import create
from tests.mapping.framed_world import CLICK, MAPPING, SERP, without_places, world
from tests.mapping.protobuf_world import classes_of, world_file

pytestmark = pytest.mark.ecosystem

MESSAGES = {"serps": "Serp", "clicks": "Click"}
DRAFT = "http://json-schema.org/draft-07/schema#"
OPTIONAL = {"type": ["string", "null"]}
HEAD = {"session": {"type": "string"}, "number": {"type": "integer"}, "at": {"type": "integer"}}
OF_JSON = {
    "serps": {**HEAD, "text": OPTIONAL, "hits": {"type": "array"}},
    "clicks": {**HEAD, **{name: {} for name in ("id", "sku", "action")}},
}


@contextlib.contextmanager
def serializers(form, url, prefix):
    """Functions of a record to framed bytes, by topic; they register their schemas."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    found = {}
    client = SchemaRegistryClient({"url": url})
    for name, avro in (("serps", SERP), ("clicks", CLICK)):
        make = dict
        if form == "avro":
            serializer = AvroSerializer(client, json.dumps(avro))
        elif form == "protobuf":
            make = classes_of(world_file())[MESSAGES[name]]
            serializer = ProtobufSerializer(make, client, {"use.deprecated.format": False})
        else:
            schema = {
                "$schema": DRAFT,
                "title": name,
                "type": "object",
                "properties": OF_JSON[name],
            }
            serializer = JSONSerializer(json.dumps(schema), client)
        context = SerializationContext(f"{prefix}{name}", MessageField.VALUE)
        found[name] = lambda record, to=serializer, context=context, make=make: to(
            make(**record), context
        )
    with client:
        yield found


def mapping_of(form, url, prefix, *, has_file):
    text = MAPPING.format(prefix=prefix, format=form, url=url)
    if has_file:
        for message in MESSAGES.values():
            by_file = f'descriptor_set = "shop.desc"\nmessage = "shop.{message}"'
            text = text.replace(f'registry = "{url}"', by_file, 1)
        return text
    return text if form != "json" else text.replace(f'registry = "{url}"\n', "")


@pytest.mark.parametrize(
    ("form", "has_file"),
    [("avro", False), ("json", False), ("protobuf", True), ("protobuf", False)],
)
def test_records_of_third_party_serializers_equal_their_canonical_twin(
    form, has_file, registry, kafka, topic_prefix, tmp_path
):
    serps, clicks = world()
    rows = []
    with serializers(form, registry.url, topic_prefix) as framed:
        for log, topic, records in (("rankings", "serps", serps), ("judgments", "clicks", clicks)):
            for partition, record, canonical in records:
                rows.append((f"{topic_prefix}{topic}", partition, framed[topic](record)))
                if canonical is not None:
                    twin = f"{topic_prefix}twin-{log}"
                    rows.append((twin, partition, json.dumps(canonical).encode()))
    assert {value[:1] for topic, _, value in rows if "twin" not in topic} == {b"\x00"}
    topics = ("serps", "clicks", "twin-rankings", "twin-judgments")
    asyncio.run(create(kafka, {f"{topic_prefix}{topic}": 2 for topic in topics}))
    asyncio.run(send_all(kafka.bootstrap, rows))
    mapping = tmp_path / "mapping.toml"
    files = descriptor_pb2.FileDescriptorSet(file=[world_file()])
    (tmp_path / "shop.desc").write_bytes(files.SerializeToString())
    mapping.write_text(mapping_of(form, registry.url, topic_prefix, has_file=has_file))
    source, of_test = f"--source=kafka://{kafka.bootstrap}", f"--set=topic_prefix={topic_prefix}"
    assert main(["topics", "create", source, of_test, f"--set=mapping={mapping}"]) == 0
    worker = Worker(tmp_path, kafka.bootstrap, topic_prefix, "--until-end", mapping=mapping)
    assert worker.wait() == 0, worker.err
    replay = ["replay", source, "--at-end=hold"]
    foreign, twin = tmp_path / "foreign", tmp_path / "twin"
    assert main([*replay, of_test, f"--mapping={mapping}", f"--out={foreign}"]) == 0
    assert main([*replay, f"{of_test}twin-", f"--out={twin}"]) == 0
    assert without_places(foreign) == without_places(twin)
    ledger = json.loads((foreign / "totals.json").read_text())["ledger"]
    assert ledger["rankings"]["read"] == len(serps)
    assert ledger["rankings"]["malformed"] == ledger["judgments"]["malformed"] == 0
    left_out = sum(canonical is None for *_, canonical in clicks)
    assert ledger["judgments"]["left_out"] == left_out > 0

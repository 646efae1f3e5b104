"""Framed topics on a real broker: an unavailable or wrong registry, restarts, replays."""

import asyncio
import json
import re
from base64 import b64encode

import pytest
from aiokafka import AIOKafkaProducer
from google.protobuf import descriptor_pb2

from evaluator.cli import main
from tests.kafka.page import output_of
from tests.kafka.process import Worker
from tests.kafka.test_map import everything
from tests.kafka.test_mapping import create, dead_letters
from tests.mapping.framed_world import CLICK, MAPPING, NOW_MS, SERP, without_places, world
from tests.mapping.protobuf_world import framed, in_world, world_file
from tests.mapping.registry import FakeRegistry, avro
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.kafka


@pytest.fixture
def registry():
    with FakeRegistry() as fake:
        yield fake


async def send_all(bootstrap, rows):
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        sent = [
            await producer.send(topic, value, b"k", partition=partition)
            for topic, partition, value in rows
        ]
        await asyncio.gather(*sent)


def filled(kafka, prefix, registry, extra=()):
    """Framed topics and their canonical twins; the numbers of both schemas."""
    serp, click = json.dumps(SERP), json.dumps(CLICK)
    numbers = [
        registry.register(f"{prefix}{topic}-value", schema)
        for topic, schema in (("serps", serp), ("clicks", click))
    ]
    serps, clicks = world()
    rows = []
    for log, foreign, schema, number, records in (
        ("rankings", "serps", serp, numbers[0], serps),
        ("judgments", "clicks", click, numbers[1], clicks),
    ):
        for partition, record, canonical in records:
            rows.append((f"{prefix}{foreign}", partition, avro(number, schema, record)))
            if canonical is not None:
                rows.append((f"{prefix}twin-{log}", partition, json.dumps(canonical).encode()))
    rows += [(f"{prefix}serps", 0, value) for value in extra]
    counts = {
        f"{prefix}{name}": 2 for name in ("serps", "clicks", "twin-rankings", "twin-judgments")
    }
    asyncio.run(create(kafka, counts))
    asyncio.run(send_all(kafka.bootstrap, rows))
    return len(serps), len(clicks), sum(row is not None for *_, row in clicks)


async def append(bootstrap, topic, rows):
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for key, value in rows:
            await producer.send_and_wait(topic, value, key, partition=0)


def test_framed_topics_are_evaluated_as_their_canonical_twin(
    kafka, registry, topic_prefix, tmp_path, capsys
):
    garbage = [
        b'{"a":1}',
        b"\x00\x00\x00\x00\x63late",
        b"\x00\x00\x00\x00\x01\xff",
        b"\x03\x00" + b"x" * 30,
    ]
    n_serps, n_clicks, n_judgments = filled(kafka, topic_prefix, registry, garbage)
    mapping = tmp_path / "m.toml"
    mapping.write_text(MAPPING.format(prefix=topic_prefix, format="avro", url=registry.url))
    source, of_test = f"--source=kafka://{kafka.bootstrap}", [f"--set=topic_prefix={topic_prefix}"]
    framed = [source, *of_test, f"--mapping={mapping}"]
    assert main(["topics", "create", source, *of_test, f"--set=mapping={mapping}"]) == 0
    assert f"created {topic_prefix}schemas" in capsys.readouterr().out
    assert main(["check", *framed]) == 0
    found = capsys.readouterr().out
    assert f"--operation Write --topic {topic_prefix}schemas" in found
    assert "and 4 would become dead letters." in found
    assert f"The latest schema of {topic_prefix}serps-value fits the mapping." in found
    assert main(["mapping", "try", *framed, "--sample=400"]) == 5
    assert "registry: schema 99: is unknown to the registry" in capsys.readouterr().out

    registry.fault = 503
    flags = {"mapping": mapping, "group_id": topic_prefix, "retention_ms": 3_600_000}
    worker = Worker(tmp_path, kafka.bootstrap, topic_prefix, "--until-end", **flags)
    worker.until_unavailable("schema registry unavailable")
    assert worker.events("registry_unavailable")
    assert worker.totals.get("ledger", {}).get("rankings", {}).get("read", 0) == 0
    registry.fault = None
    assert worker.wait() == 0, worker.err
    assert worker.events("registry_reached")
    recorded = asyncio.run(everything(kafka, f"{topic_prefix}schemas", 1))[0]
    assert sorted(json.loads(row.key)["id"] for row in recorded) == ["1", "2", "99"]
    letters = asyncio.run(dead_letters(kafka.bootstrap, f"{topic_prefix}dead-letters", 4))
    headers = [dict(each.headers) for each in letters]
    assert sorted(each["reason"] for each in headers) == [b"decode"] * 2 + [b"registry"] * 2
    assert {each.value for each in letters} == set(garbage)

    out = tmp_path / "out"
    replay = ["replay", *framed, "--at-end=hold", "--set=retention_ms=3600000"]
    registry.register("late", '"int"')
    registry.schemas["99"] = registry.schemas["1"]  # too late: its first answer counts
    assert main([*replay, f"--out={out}"]) == 0
    replayed = json.loads((out / "totals.json").read_text())
    ledger = replayed["ledger"]
    assert ledger["rankings"]["malformed"] == 4
    assert ledger["rankings"]["open"] + ledger["rankings"]["duplicate"] == n_serps
    assert (ledger["judgments"]["read"], ledger["judgments"]["left_out"]) == (
        n_clicks, n_clicks - n_judgments,
    )  # fmt: skip
    capsys.readouterr()
    settings = [f"--set=mapping={mapping}", f"--set=group_id={topic_prefix}"]
    assert main(["totals", source, *of_test, *settings, "--set=retention_ms=3600000"]) == 0
    live = json.loads(capsys.readouterr().out)
    assert (live["ledger"], live["totals"]) == (ledger, replayed["totals"])

    twin = ["replay", source, f"--set=topic_prefix={topic_prefix}twin-", "--at-end=hold"]
    assert main([*twin, f"--out={tmp_path / 'twin'}", "--set=retention_ms=3600000"]) == 0
    expected, *others = without_places(tmp_path / "twin")
    expected["ledger"]["rankings"]["read"] += len(garbage)
    expected["ledger"]["rankings"]["malformed"] += len(garbage)
    expected["dead_letters"] |= {"decode": 2, "registry": 2}
    assert [*without_places(out)] == [expected, *others]
    assert expected["totals"]

    manifest = json.loads((out / "manifest.json").read_text())
    saved = out / "schemas.json"
    assert manifest["files"]["schemas.json"]["bytes"] == saved.stat().st_size
    registry.fault = 500
    again = tmp_path / "again"
    elsewhere = [f"--set=topic_prefix={topic_prefix}"]
    again_in_two = [*replay, *elsewhere, f"--schemas={saved}", "--processes=2"]
    assert main([*again_in_two, f"--out={again}"]) == 0
    assert (again / "schemas.json").read_bytes() == saved.read_bytes()
    assert json.loads((again / "manifest.json").read_text())["chain"] == manifest["chain"]
    assert main(["verify", str(out), *framed]) == 0


def test_a_worker_started_without_the_registry_uses_the_recorded_schemas(
    kafka, registry, topic_prefix, tmp_path, capsys
):
    filled(kafka, topic_prefix, registry)
    mapping = tmp_path / "m.toml"
    mapping.write_text(MAPPING.format(prefix=topic_prefix, format="avro", url=registry.url))
    source, of_test = f"--source=kafka://{kafka.bootstrap}", f"--set=topic_prefix={topic_prefix}"
    assert main(["topics", "create", source, of_test, f"--set=mapping={mapping}"]) == 0
    first = Worker(tmp_path, kafka.bootstrap, topic_prefix, "--until-end", mapping=mapping)
    assert first.wait() == 0, first.err
    deep = b'{"registry":"r","id":"1","record":"a","more":' + b"[" * 2_000 + b"]" * 2_000 + b"}"
    foreign = [(b"hello", b"there"), (b"{}", None), (deep, b"{}")]
    asyncio.run(append(kafka.bootstrap, f"{topic_prefix}schemas", foreign))
    registry.fault = "reset"
    second = Worker(
        tmp_path, kafka.bootstrap, topic_prefix, "--until-end", mapping=mapping,
        group_id=f"{topic_prefix}second",
    )  # fmt: skip
    assert second.wait() == 0, second.err
    (ignored,) = second.events("schemas_unreadable")
    assert (ignored["records"], ignored["offset"]) == (len(foreign), 2)
    of_subjects = [each["subject"] for each in second.events("schema_not_compared")]
    assert of_subjects == [f"{topic_prefix}{topic}-value" for topic in ("serps", "clicks")]
    serp = {"session": "s-new", "number": 9, "at": NOW_MS, "text": None, "hits": []}
    number = registry.register(f"{topic_prefix}serps-value", json.dumps({**SERP, "doc": "next"}))
    rows = [(f"{topic_prefix}serps", 1, avro(number, json.dumps(SERP), serp))]
    asyncio.run(send_all(kafka.bootstrap, rows))
    third = Worker(tmp_path, kafka.bootstrap, topic_prefix, mapping=mapping)
    third.until_unavailable("schema registry unavailable")
    assert third.stop() == 0
    assert main(["replay", source, of_test, f"--mapping={mapping}", f"--out={tmp_path / 'o'}"]) == 3
    assert "Check `registry` of the mapping" in capsys.readouterr().err
    ours = json.dumps({"registry": registry.url, "id": "1", "record": "a"}).encode()
    later = [(ours, b'{"kind":"AVRO","schema":"1","member":"of a later version"}')]
    asyncio.run(append(kafka.bootstrap, f"{topic_prefix}schemas", later))
    assert main(["replay", source, of_test, f"--mapping={mapping}", f"--out={tmp_path / 'l'}"]) == 3
    assert "An evaluator of another version may have written it" in capsys.readouterr().err


def test_an_incompatible_latest_schema_is_found_before_a_record_uses_it(
    kafka, registry, topic_prefix, tmp_path, capsys
):
    filled(kafka, topic_prefix, registry)
    fields = [each for each in SERP["fields"] if each["name"] != "session"]
    registry.register(f"{topic_prefix}serps-value", json.dumps({**SERP, "fields": fields}))
    mapping = tmp_path / "m.toml"
    mapping.write_text(MAPPING.format(prefix=topic_prefix, format="avro", url=registry.url))
    source, of_test = f"--source=kafka://{kafka.bootstrap}", f"--set=topic_prefix={topic_prefix}"
    of_mapping = f"--set=mapping={mapping}"
    assert main(["topics", "create", source, of_test, of_mapping]) == 0
    subject = f"{topic_prefix}serps-value"
    why = f"The latest schema of {subject} does not fit the mapping: rankings.trace_id: session is"
    for command in (["check"], ["mapping", "try"]):
        assert main([*command, source, of_test, f"--mapping={mapping}"]) == 5
        found = capsys.readouterr().out
        assert why in found
        assert "Correct the path in the mapping, or the schema" in found
    asyncio.run(create(kafka, {f"{topic_prefix}r": 2, f"{topic_prefix}j": 2}))
    to = f"--to={topic_prefix}r,{topic_prefix}j"
    for command, options in (("run", ["--until-end"]), ("map", [to])):
        worker = Worker(
            *(tmp_path, kafka.bootstrap, topic_prefix, *options), command=command, mapping=mapping
        )
        worker.eventually(lambda: worker.events("schema_does_not_fit"))  # noqa: B023 - called here
        (event,) = worker.events("schema_does_not_fit")
        assert (event["level"], event["subject"]) == ("error", subject)
        assert event["error"].startswith(why)
        assert (worker.wait() if command == "run" else worker.stop()) == 0, worker.err


def test_map_waits_for_the_registry_and_copies_framed_records(
    kafka, registry, topic_prefix, tmp_path
):
    n_serps, _, n_judgments = filled(kafka, topic_prefix, registry)
    mapping = tmp_path / "m.toml"
    mapping.write_text(MAPPING.format(prefix=topic_prefix, format="avro", url=registry.url))
    source, of_test = f"--source=kafka://{kafka.bootstrap}", f"--set=topic_prefix={topic_prefix}"
    assert main(["topics", "create", source, of_test, f"--set=mapping={mapping}"]) == 0
    asyncio.run(create(kafka, {f"{topic_prefix}r": 2, f"{topic_prefix}j": 2}))
    registry.fault = 503
    to = f"--to={topic_prefix}r,{topic_prefix}j"
    mapper = Worker(tmp_path, kafka.bootstrap, topic_prefix, to, command="map", mapping=mapping)
    mapper.until_unavailable("schema registry unavailable")
    registry.fault = None
    name = 'evaluator_map_messages_total{topic="%s"}'
    expected = [n_serps, n_judgments]
    mapper.eventually(
        lambda: [mapper.samples().get(name % log) for log in ("rankings", "judgments")] == expected
    )
    assert mapper.stop() == 0


def test_records_in_protobuf_are_evaluated_as_their_canonical_twin(
    kafka, registry, topic_prefix, tmp_path
):
    """By the descriptor set of the page, and by the descriptors of a registry."""
    page = (ROOT / "docs" / "formats.md").read_text("utf-8")
    *_, mapping = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    file = world_file()
    serialized = b64encode(file.SerializeToString()).decode()
    number = registry.register("shop", "message Hit {}", "PROTOBUF", serialized=serialized)
    rows = []
    topics = ((0, "serps", "rankings", 1), (1, "clicks", "judgments", 2))
    for at, topic, log, index in topics:
        for partition, value, canonical in in_world()[at]:
            rows.append((f"{topic_prefix}{topic}", partition, framed(number, value, (index,))))
            if canonical is not None:
                twin = f"{topic_prefix}twin-{log}"
                rows.append((twin, partition, json.dumps(canonical).encode()))
    asyncio.run(create(kafka, {topic: 2 for topic, *_ in rows}))
    asyncio.run(send_all(kafka.bootstrap, rows))
    for topic in ("serps", "clicks"):
        mapping = mapping.replace(f'"{topic}"', f'"{topic_prefix}{topic}"')
    by_registry = re.sub(r"descriptor_set .*\nmessage .*", f'registry = "{registry.url}"', mapping)
    (tmp_path / "registry.toml").write_text(by_registry)
    (tmp_path / "descriptors.toml").write_text(mapping)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    (tmp_path / "shop.desc").write_bytes(files.SerializeToString())
    source = f"--source=kafka://{kafka.bootstrap}"
    twin = ["replay", source, f"--set=topic_prefix={topic_prefix}twin-", "--at-end=hold"]
    assert main([*twin, f"--out={tmp_path / 'twin'}"]) == 0
    for name in ("descriptors", "registry"):
        of_test = [
            source,
            f"--mapping={tmp_path / name}.toml",
            f"--set=topic_prefix={topic_prefix}",
        ]
        assert main(["mapping", "try", *of_test]) == 0
        assert main(["replay", *of_test, "--at-end=hold", f"--out={tmp_path / name}"]) == 0
        assert without_places(tmp_path / name) == without_places(tmp_path / "twin")
    assert (tmp_path / "registry" / "schemas.json").exists()
    assert not (tmp_path / "descriptors" / "schemas.json").exists()


def test_the_commands_of_the_page_produce_a_value(kafka, registry, topic_prefix, tmp_path):
    page = (ROOT / "docs" / "formats.md").read_text("utf-8")
    mapping, commands, _ = re.findall(r"```(?:toml|sh)\n(.*?)```", page, re.DOTALL)
    filled(kafka, topic_prefix, registry)
    for topic in ("serps", "clicks"):
        mapping = mapping.replace(f'"{topic}"', f'"{topic_prefix}{topic}"')
    (tmp_path / "mapping.toml").write_text(mapping.replace("http://localhost:8081", registry.url))
    output = output_of(commands, kafka, topic_prefix, tmp_path)
    assert re.search(r'evaluator_running_value_mean\{measure="mrr".*\} 0\.', output)
    chains = [
        json.loads((tmp_path / out / "manifest.json").read_text())["chain"]
        for out in ("first", "again")
    ]
    assert chains[0] == chains[1]

"""OTLP as the collector writes it, from the messages of its own schema, and the preset otel-genai."""

import json
import random
import re
import shlex
import tomllib
from base64 import b64decode
from importlib.resources import files

import pytest
import yaml
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as names
from opentelemetry.semconv.attributes import service_attributes

from evaluator.cli import main
from evaluator.mapping.document import read_document, read_mapping
from evaluator.mapping.messages import messages_of
from evaluator.mapping.otlp import items_of
from evaluator.mapping.outcomes import LeftOut
from evaluator.mapping.record import Record
from evaluator.wire.messages.strict import Malformed
from tests.mapping.framed_world import without_places
from tests.tidy.tree import ROOT

PRESET = (files("evaluator.mapping") / "presets" / "otel-genai.toml").read_text("utf-8")
PAGE = (ROOT / "docs" / "opentelemetry.md").read_text("utf-8")
NOW_MS = 1_769_846_400_000
DOCUMENT_ID = "gen_ai.retrieval.document.id"


def any_value(value):
    """A value in the schema of OTLP."""
    if isinstance(value, dict):
        return AnyValue(kvlist_value={"values": attributes(value)})
    if isinstance(value, list):
        return AnyValue(array_value={"values": map(any_value, value)})
    kind = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}
    return AnyValue(**{kind[type(value)]: value})


def attributes(values):
    return [KeyValue(key=key, value=any_value(value)) for key, value in values.items()]


def in_json(request):
    """The JSON encoding of OTLP: that of Protobuf, but with ids in hexadecimal."""

    def hexadecimal(value):
        if isinstance(value, list):
            return [hexadecimal(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            name: b64decode(each).hex() if name in IDS else hexadecimal(each)
            for name, each in value.items()
        }

    plain = MessageToDict(request, use_integers_for_enums=True)
    return json.dumps(hexadecimal(plain)).encode()


IDS = {"traceId", "spanId", "parentSpanId"}


def request_of(spans=(), logs=()):
    resource = {"attributes": attributes({service_attributes.SERVICE_NAME: "answers"})}
    if logs:
        scoped = [{"scope": {"name": "judge"}, "log_records": logs}]
        resource_logs = [{"resource": resource, "scope_logs": scoped}]
        return in_json(ExportLogsServiceRequest(resource_logs=resource_logs))
    half = len(spans) // 2
    scoped = [{"spans": spans[:half]}, {"spans": spans[half:], "scope": {"name": "rag"}}]
    resource_spans = [{"resource": resource, "scope_spans": scoped}]
    return in_json(ExportTraceServiceRequest(resource_spans=resource_spans))


def ids(query):
    return query.to_bytes(16, "big"), (query + 7).to_bytes(8, "big")


def retrieval(query, documents, **others):
    trace_id, span_id = ids(query)
    given = {
        names.GEN_AI_OPERATION_NAME: names.GenAiOperationNameValues.RETRIEVAL.value,
        names.GEN_AI_RETRIEVAL_DOCUMENTS: documents,
        names.GEN_AI_RETRIEVAL_QUERY_TEXT: "red shoes",
        names.GEN_AI_DATA_SOURCE_ID: "catalogue",
        **others,
    }
    given = {name: value for name, value in given.items() if value is not None}
    end = (NOW_MS + query) * 1_000_000 + 999_999
    return Span(
        trace_id=trace_id, span_id=span_id, name="retrieval catalogue", kind=3,
        start_time_unix_nano=end - 10**8, end_time_unix_nano=end, attributes=attributes(given),
    )  # fmt: skip


def evaluation(query, score, document=None, *, after_ms=50, **others):
    trace_id, span_id = ids(query)
    given = {names.GEN_AI_EVALUATION_NAME: "relevance", names.GEN_AI_EVALUATION_SCORE_VALUE: score}
    given |= {} if document is None else {DOCUMENT_ID: document}
    members = {
        "trace_id": trace_id, "span_id": span_id, "event_name": "gen_ai.evaluation.result",
        "time_unix_nano": (NOW_MS + query + after_ms) * 1_000_000, **others,
    }  # fmt: skip
    return LogRecord(attributes=attributes(given), **members)


MAPS = {log: messages_of(each) for log, each in read_document(PRESET, "m.toml").logs.items()}


def mapped(log, value):
    return MAPS[log](Record(value))


def test_retrieval_spans_become_rankings_and_other_spans_are_left_out():
    documents = [{"id": "d-2", "score": 0.1}, {"id": "d-1", "score": 0.9}]
    chat = retrieval(3, documents, **{names.GEN_AI_OPERATION_NAME: "chat"})
    spans = [
        chat,
        retrieval(1, documents),
        retrieval(2, json.dumps(documents), **{names.GEN_AI_DATA_SOURCE_ID: None}),
        retrieval(4, None),  # without content capture
    ]
    first, second = map(json.loads, mapped("rankings", request_of(spans)))
    assert first == {
        "schema_version": 1, "trace_id": f"{1:032x}", "node_id": f"{8:016x}",
        "timestamp_ms": NOW_MS + 1, "model": "catalogue", "query": "red shoes",
        "candidate_ids": ["d-2", "d-1"], "ranks": [1, 2],
    }  # fmt: skip
    assert second == first | {
        "trace_id": f"{2:032x}", "node_id": f"{9:016x}", "model": "answers",
        "timestamp_ms": NOW_MS + 2,
    }  # fmt: skip
    alone = mapped("rankings", request_of([chat, retrieval(2, None)]))
    why = "present: no attributes.gen_ai\\.retrieval\\.documents"
    assert alone == LeftOut(why, NOW_MS + 3)  # the later of both


def test_evaluation_results_become_judgments_of_the_document_that_they_name():
    logs = [
        evaluation(1, 0.5, "d-1"),
        evaluation(1, 0.7),  # of the whole answer
        evaluation(1, 0.7, "d-1", event_name="gen_ai.client.inference.operation.details"),
        evaluation(1, 2, "d-2", time_unix_nano=0, observed_time_unix_nano=7_000_000),
        evaluation(1, 0.7, "d-1", span_id=b""),
    ]
    first, second = map(json.loads, mapped("judgments", request_of(logs=logs)))
    assert first == {
        "schema_version": 1, "trace_id": f"{1:032x}", "node_id": f"{8:016x}",
        "timestamp_ms": NOW_MS + 51, "source": "relevance", "grades": {"d-1": 0.5},
    }  # fmt: skip
    assert (second["timestamp_ms"], second["grades"]) == (7, {"d-2": 2})
    assert isinstance(mapped("judgments", request_of(logs=[logs[1]])), LeftOut)
    named = request_of(logs=[evaluation(1, 1, "x")])
    (found,) = mapped("judgments", named.replace(DOCUMENT_ID.encode(), b"evaluator.candidate_id"))
    assert json.loads(found)["grades"] == {"x": 1}


def test_the_preset_has_names_of_the_conventions():
    found = set()

    def add(value):
        if isinstance(value, dict | list):
            for each in (*value, *value.values()) if isinstance(value, dict) else value:
                add(each)
        elif isinstance(value, str) and "gen_ai\\." in value:
            found.add(value.removeprefix("attributes.").replace("\\.", "."))

    add(tomllib.loads(PRESET))
    of_conventions = {each for name, each in vars(names).items() if name.startswith("GEN_AI_")}
    assert len(found) == 7
    assert found - of_conventions == {DOCUMENT_ID}  # not a part of them yet


def test_attributes_of_all_kinds_are_plain_values():
    given = {
        "text": "x", "yes": True, "no": False, "zero": 0, "large": -(2**63), "real": 0.5,
        "list": [1, "a", [2.5]], "object": {"a": {"b": 1}, "c": []}, "empty": "",
    }  # fmt: skip
    logs = [LogRecord(attributes=attributes(given), body=any_value({"a": [1]}))]
    request = json.loads(request_of(logs=logs))
    of_log = request["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["attributes"]
    of_log += [{"key": "none"}, {"key": "null", "value": {}},
               {"key": "number", "value": {"intValue": 5}},
               {"key": "huge", "value": {"doubleValue": "Infinity"}}]  # fmt: skip
    (item,) = items_of(json.dumps(request).encode())
    others = {"none": None, "null": None, "number": 5, "huge": float("inf")}
    assert item["attributes"] == given | others
    assert item["body"] == {"a": [1]}
    assert item["resource"] == {"attributes": {"service.name": "answers"}}


@pytest.mark.parametrize(
    ("value", "reason", "text"),
    [
        (b"", "decode", "empty"),
        (b"\x0a\x02", "decode", "not OTLP: "),
        (b"[]", "decode", "not OTLP: Expected `object`"),
        (b"{}", "decode", "neither resourceSpans nor resourceLogs"),
        (b'{"resourceSpans": [{"scopeSpans": {}}]}', "decode", "Expected `array`"),
        (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":1}]}]}]}]}', "decode", "`str`"),
        (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":"a","value":{"intValue":"x"}}]}]}]}]}', "decode", "invalid literal"),
        (b'{"resourceSpans":' + b"[" * 90 + b"]" * 90 + b"}", "limit", "nested"),
        (b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[' + b"{}," * 10_000 + b"{}]}]}]}", "limit", "more than 10000"),
        (request_of([retrieval(1, "no array")]), "mapping", "rows.each"),
        (request_of([retrieval(1, [{"score": 1}]), retrieval(2, [])]), "mapping", "id is missing"),
    ],
)  # fmt: skip
def test_what_is_no_otlp_is_refused_as_a_whole(value, reason, text):
    found = mapped("rankings", value)
    assert (found.reason, text in found.detail) == (reason, True), found


def test_attributes_of_a_resource_are_read_once_for_all_its_scopes():
    scopes = [{"spans": [{"name": name}]} for name in "abc"]
    of = {"attributes": [{"key": "a", "value": {"stringValue": "b"}}]}
    items = list(
        items_of(json.dumps({"resourceSpans": [{"resource": of, "scopeSpans": scopes}]}).encode())
    )
    assert [item["name"] for item in items] == [*"abc"]
    assert items[0]["resource"] == {"attributes": {"a": "b"}}
    assert all(item["resource"] is items[0]["resource"] for item in items)


def test_damaged_requests_never_raise():
    chance = random.Random(4)
    requests = [
        request_of([retrieval(n, [{"id": "a"}, {"id": str(n)}]) for n in range(3)]),
        request_of(logs=[evaluation(n, 1, "a") for n in range(3)]),
    ]
    parts = [b"{", b"]", b'"', b"null", b"1e999", b"\xff", b"[[", b"0", b'"key"', b"\\ud800"]
    outcomes = set()
    for _ in range(4_000):
        at = chance.randrange(2)
        value = bytearray(requests[at])
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(value))
            value[place : place + chance.randrange(4)] = chance.choice(parts)
        outcomes.add(type(mapped(("rankings", "judgments")[at], bytes(value))))
    assert outcomes == {list, LeftOut, Malformed}


def test_a_world_in_otlp_equals_its_canonical_twin(tmp_path):
    chance = random.Random(2)
    topics = {name: [] for name in ("otlp_spans", "otlp_logs", "rankings", "judgments")}
    n_left_out, waiting = 0, []
    for query in range(60):
        documents = chance.sample(["a", "b", "c", "d", "e"], 4)
        rows = [{"id": each, "score": 0.5} for each in documents]
        spans = [retrieval(query, chance.choice([rows, json.dumps(rows)]))]
        trace_id, span_id = (each.hex() for each in ids(query))
        key = {"schema_version": 1, "trace_id": trace_id, "node_id": span_id}
        topics["rankings"].append(json.dumps({
            **key, "timestamp_ms": NOW_MS + query, "model": "catalogue", "query": "red shoes",
            "candidate_ids": documents, "ranks": [1, 2, 3, 4],
        }))  # fmt: skip
        if chance.random() < 0.5:
            n_left_out += 1
            topics["otlp_spans"].append(request_of([retrieval(query, None)]).decode())
        waiting += spans  # a request has one span to three
        if len(waiting) > chance.randrange(3) or query == 59:
            topics["otlp_spans"].append(request_of([*waiting, retrieval(query, None)]).decode())
            waiting = []
        for k in range(chance.randrange(3)):
            graded, score = chance.choice(documents), chance.choice([0.25, 1.0])
            record = evaluation(query, score, graded, after_ms=50 + k)
            topics["otlp_logs"].append(request_of(logs=[record]).decode())
            topics["judgments"].append(json.dumps({
                **key, "timestamp_ms": NOW_MS + query + 50 + k, "source": "relevance",
                "grades": {graded: score},
            }))  # fmt: skip
    for name, rows in topics.items():
        path = tmp_path / ("otlp" if name.startswith("otlp") else "canonical") / f"{name}.ndjson"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(rows) + "\n")
    (tmp_path / "otel.toml").write_text(PRESET)
    canonical = f"--source=file://{tmp_path / 'canonical'}"
    assert main(["replay", canonical, f"--out={tmp_path / 'expected'}"]) == 0
    arguments = [f"--source=file://{tmp_path / 'otlp'}", f"--mapping={tmp_path / 'otel.toml'}"]
    assert main(["replay", *arguments, f"--out={tmp_path / 'found'}"]) == 0
    expected, found = (without_places(tmp_path / each) for each in ("expected", "found"))
    assert found[:2] == expected[:2]
    assert found[1]
    totals = json.loads((tmp_path / "found" / "totals.json").read_text())
    assert totals["ledger"]["rankings"]["left_out"] == n_left_out


def test_the_page_is_executed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    read_mapping.cache_clear()  # of another mapping.toml
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "logs").mkdir()
    spans, logs = (text for kind, text in blocks if kind == "json")
    (tmp_path / "logs" / "otlp_spans.ndjson").write_text(spans)
    (tmp_path / "logs" / "otlp_logs.ndjson").write_text(logs)
    (commands,) = (text for kind, text in blocks if kind == "console")
    preset, *others = (shlex.split(line)[2:] for line in commands.splitlines())
    assert main(preset[:3]) == 0
    (tmp_path / preset[-1]).write_text(capsys.readouterr().out)
    for command in others:
        assert main(command) == 0
    shown = capsys.readouterr().out
    assert 'where: attributes.gen_ai\\.operation\\.name is "chat"' in shown
    assert "1 evaluations, 0 dead letters" in shown
    (row,) = map(json.loads, (tmp_path / "results" / "evaluations.ndjson").read_text().splitlines())
    assert row["values"]["served"]["mrr"] == 1 / 2  # the second document is relevant
    (collector,) = (yaml.safe_load(text) for kind, text in blocks if kind == "yaml")
    kafka = collector["exporters"]["kafka"]
    mapping = tomllib.loads(PRESET)
    assert kafka["traces"] == {"topic": mapping["rankings"]["topic"], "encoding": "otlp_json"}
    assert kafka["logs"] == {"topic": mapping["judgments"]["topic"], "encoding": "otlp_json"}

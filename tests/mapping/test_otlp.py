"""OTLP as the collector writes it, from the messages of its own schema, and the preset otel-genai."""

import importlib
import json
import random
import re
import shlex
import tomllib
import tracemalloc
from base64 import b64decode
from collections import Counter
from functools import partial
from importlib.resources import files

import pytest
import yaml
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
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
from evaluator.mapping.record import LeftOut, Record
from evaluator.wire.messages.malformed import Malformed
from evaluator.wire.records import MAX_RECORD_BYTES
from tests.mapping.framed_world import without_places
from tests.repeats import sized, slow_in_file_if
from tests.tidy.tree import ROOT

PRESET = (files("evaluator.mapping") / "presets" / "otel-genai.toml").read_text("utf-8")
PAGE = (ROOT / "docs" / "opentelemetry.md").read_text("utf-8")
COLLECTOR = ROOT / "deploy" / "otel-collector" / "collector.yaml"
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


def in_protobuf(request):
    return request.SerializeToString()


IDS = {"traceId", "spanId", "parentSpanId"}


def request_of(spans=(), logs=(), encoded=in_json):
    resource = {"attributes": attributes({service_attributes.SERVICE_NAME: "answers"})}
    if logs:
        scoped = [{"scope": {"name": "judge"}, "log_records": logs}]
        resource_logs = [{"resource": resource, "scope_logs": scoped}]
        return encoded(ExportLogsServiceRequest(resource_logs=resource_logs))
    half = len(spans) // 2
    scoped = [{"spans": spans[:half]}, {"spans": spans[half:], "scope": {"name": "rag"}}]
    resource_spans = [{"resource": resource, "scope_spans": scoped}]
    return encoded(ExportTraceServiceRequest(resource_spans=resource_spans))


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


@pytest.mark.parametrize("space", ["\n", "\n\n", "\n \t\r\n", " ", "\t", "\r\n"])
def test_json_may_begin_with_whitespace(space):
    value = request_of([retrieval(1, [{"id": "d-1"}])])
    for spaced in (value, value.replace(b"{", b"{" + space.encode())):
        assert mapped("rankings", space.encode() + spaced) == mapped("rankings", value)
    assert mapped("rankings", space.encode() + b"{}").detail.startswith("not OTLP: neither")


def test_protobuf_that_begins_like_json_is_read():
    begun = set()
    for n in range(1, 100):  # a resource of n + 4 bytes in a request of 125
        resource = {"attributes": [KeyValue(key='"' * n)]}
        spans = [Span(trace_id=b"\xab", name="x" * (108 - n))]
        scoped = [{"spans": spans}]
        value = in_protobuf(
            ExportTraceServiceRequest(
                resource_spans=[{"resource": resource, "scope_spans": scoped}]
            )
        )
        (item,) = items_of(value)
        assert item["traceId"] == "ab"
        begun.add(value[:4])
    assert begun >= {b"\n{\n" + each for each in (b"\t", b"\n", b"\r", b" ", b'"')}


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
def test_invalid_otlp_is_refused_as_a_whole(value, reason, text):
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


def any_span(chance):
    """A span with odd values in all its fields."""
    number = partial(chance.choice, [0, 1, 127, 128, 2**31 - 1])
    text = partial(chance.choice, ["", "0", "a", "\u00fc\U0001f600", "x" * 200])
    time = partial(chance.choice, [0, 1, NOW_MS * 1_000_000, 2**64 - 1])
    return Span(
        trace_id=chance.randbytes(16), span_id=chance.choice([b"", chance.randbytes(8)]),
        parent_span_id=chance.choice([b"", b"p"]), trace_state=text(), name=text(),
        kind=chance.choice([0, 3, -1, 2**31 - 1]), flags=chance.choice([0, 1, 2**32 - 1]),
        start_time_unix_nano=time(), end_time_unix_nano=time(),
        dropped_attributes_count=number(), dropped_events_count=number(),
        dropped_links_count=chance.choice([0, 2**32 - 1]), attributes=any_attributes(chance),
        events=[Span.Event(name="e", time_unix_nano=1)] * chance.randrange(2),
        links=[Span.Link(trace_id=b"t")] * chance.randrange(2),
        status=chance.choice([None, {}, {"code": 2, "message": text()}]),
    )  # fmt: skip


def any_log_record(chance):
    """The same of a log record."""
    return LogRecord(
        trace_id=chance.choice([b"", chance.randbytes(16)]), span_id=chance.randbytes(8),
        event_name=chance.choice(["", "e"]), severity_text=chance.choice(["", "warn"]),
        time_unix_nano=chance.choice([0, 2**64 - 1]), observed_time_unix_nano=chance.randrange(9),
        severity_number=chance.choice([0, 9, -5]), flags=chance.choice([0, 2**32 - 1]),
        dropped_attributes_count=chance.choice([0, 2**32 - 1]),
        attributes=any_attributes(chance),
        body=chance.choice(
            [None, AnyValue(), AnyValue(bytes_value=b"b")]
            + [any_value(each) for each in ({"a": [1]}, 0, False, 0.0, "", "0")]
        ),
    )  # fmt: skip


def any_attributes(chance):
    values = [
        "", "a", True, False, 0, -1, 2**63 - 1, -(2**63), 0.0, -0.5, 1e300, float("inf"), [], {},
        [1, "a", [2.5, {}]], {"a": {"b": [1]}, "": "x"},
    ]  # fmt: skip
    found = {chance.choice("abc") * n: chance.choice(values) for n in range(chance.randrange(4))}
    odd = [KeyValue(key="none"), KeyValue(key="bytes", value=AnyValue(bytes_value=b"x"))]
    return [*attributes(found), *odd[: chance.randrange(3)]]


def of_json(request):
    """The items without members that are not read."""
    items = list(items_of(in_json(request)))
    return in_order({k: v for k, v in each.items() if k not in NOT_READ} for each in items)


NOT_READ = {"events", "links"}


def in_order(items):
    """Items as one text."""
    return json.dumps(list(items), sort_keys=True)


def test_protobuf_gives_the_messages_of_json():
    chance = random.Random(5)
    for _ in range(sized(2_000, quick=200)):
        spans = [any_span(chance) for _ in range(chance.randrange(4))]
        logs = [any_log_record(chance) for _ in range(chance.randrange(3))]
        request = request_of(spans, logs, lambda request: request)
        assert in_order(items_of(in_protobuf(request))) == of_json(request)


@pytest.mark.slow(alone=False)
def test_damaged_protobuf_is_read_as_by_its_schema_or_refused():
    chance, n_read = random.Random(6), Counter()
    for _ in range(sized(6_000, quick=1_500)):
        of_spans = chance.random() < 0.5
        spans, logs = [any_span(chance)], [] if of_spans else [any_log_record(chance)]
        request = request_of(spans * of_spans, logs, lambda request: request)
        value = bytearray(in_protobuf(request))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(1, len(value))
            if chance.random() < 0.8:
                value[at] = chance.choice([0, 1, 9, 0x0A, 0x12, 0x7F, 0x80, 0xFF, value[at] ^ 8])
            else:
                odd = [b"\x80", b"\xff" * 10, b"\x0a\0", b"\x1a\2\x0a\0", value[at : at + 9]]
                value[at : at + chance.randrange(3)] = chance.choice(odd)
        try:
            items = list(items_of(bytes(value)))
        except ValueError:
            n_read["refused"] += 1
            continue
        try:
            found = type(request).FromString(bytes(value))
        except DecodeError:  # in a member that is not read
            n_read["not read"] += 1
            continue
        scoped = [s for r in getattr(found, "resource_spans", ()) for s in r.scope_spans]
        logs = [s for r in getattr(found, "resource_logs", ()) for s in r.scope_logs]
        unknown = [UnknownFieldSet(record) for each in logs for record in each.log_records]
        is_known = all(each.field_number != 1 for fields in unknown for each in fields)
        if is_known and all(span.trace_id for each in scoped for span in each.spans):
            assert in_order(items) == of_json(found), value.hex()
            n_read["equal"] += 1
    assert n_read["equal"] > n_read["not read"]
    assert min(n_read["equal"], n_read["refused"]) > 100


def field(number, *parts):
    """Bytes in a field of Protobuf."""
    content = b"".join(parts)
    size, length = len(content), b""
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def span_of(*attributes):
    """A request with one span."""
    return field(1, field(2, field(2, field(1, b"t"), *attributes)))


REQUESTS = {
    "limit: more than 10000 spans": field(1, field(2, field(2) * 100_000)),
    "decode: not OTLP: more than 10000 res": field(1, field(2)) * 50_000,
    "decode: not OTLP: more than 10000 ": field(1, field(2) * 100_000),
    "where: ": span_of(field(9) * 100_000),
    "where: attributes": span_of(field(9, field(2, field(5, field(1) * 100_000)))),
    "decode: not OTLP: a number does": span_of(field(9, field(2) + b"\x12\x80")),
    "decode: not OTLP: a field has the number 1 and the wire": field(1, field(2, b"\x0b")),
    "decode: not OTLP: 'utf-8'": span_of(field(9, field(1, b"\xff"))),
    "decode: not OTLP: a field ends too late": field(1, b"\x12\7"),
}


IS_QUICK = {name for name, value in REQUESTS.items() if len(value) < 1_000}


@pytest.mark.parametrize(
    "text", [pytest.param(name, marks=slow_in_file_if(name not in IS_QUICK)) for name in REQUESTS]
)
def test_large_and_damaged_protobuf_takes_little_memory(text):
    value = REQUESTS[text]
    assert len(value) <= MAX_RECORD_BYTES
    tracemalloc.start()
    found = mapped("rankings", value)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    shown = f"{found.reason}: {found.detail}" if isinstance(found, Malformed) else found.why
    assert shown.startswith(text)
    assert peak < 40 * len(value) + (16 << 20)


def test_nested_attributes_of_protobuf_have_a_limit():
    def nested(depth):
        value = field(1, b"x")
        for _ in range(depth):
            value = field(5, field(1, value))
        return span_of(field(9, field(1, b"a"), field(2, value)))

    (item,) = items_of(nested(18))
    assert str(item["attributes"]["a"]).count("[") == 18
    with pytest.raises(ValueError, match="nested more than 18 deep"):
        list(items_of(nested(19)))


def test_damaged_requests_do_not_raise():
    chance = random.Random(4)
    requests = [
        request_of([retrieval(n, [{"id": "a"}, {"id": str(n)}]) for n in range(3)]),
        request_of(logs=[evaluation(n, 1, "a") for n in range(3)]),
    ]
    parts = [b"{", b"]", b'"', b"null", b"1e999", b"\xff", b"[[", b"0", b'"key"', b"\\ud800"]
    outcomes = set()
    for _ in range(sized(4_000, quick=600)):
        at = chance.randrange(2)
        value = bytearray(requests[at])
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(value))
            value[place : place + chance.randrange(4)] = chance.choice(parts)
        outcomes.add(type(mapped(("rankings", "judgments")[at], bytes(value))))
    assert outcomes == {list, LeftOut, Malformed}


@pytest.mark.parametrize("encoded", [in_json, in_protobuf])
def test_a_world_in_otlp_equals_its_canonical_twin(tmp_path, encoded):
    if encoded is in_protobuf:  # which has no lines
        pytest.importorskip("pyarrow.parquet", reason="of the group compare")
        pytest.importorskip("fsspec", reason="of the extra archives")
        arrow = importlib.import_module("pyarrow")
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
            topics["otlp_spans"].append(request_of([retrieval(query, None)], (), encoded))
        waiting += spans  # a request has one span to three
        if len(waiting) > chance.randrange(3) or query == 59:
            spans = [*waiting, retrieval(query, None)]
            topics["otlp_spans"].append(request_of(spans, (), encoded))
            waiting = []
        for k in range(chance.randrange(3)):
            graded, score = chance.choice(documents), chance.choice([0.25, 1.0])
            record = evaluation(query, score, graded, after_ms=50 + k)
            topics["otlp_logs"].append(request_of((), [record], encoded))
            topics["judgments"].append(json.dumps({
                **key, "timestamp_ms": NOW_MS + query + 50 + k, "source": "relevance",
                "grades": {graded: score},
            }))  # fmt: skip
    for name, rows in topics.items():
        path = tmp_path / ("otlp" if name.startswith("otlp") else "canonical") / f"{name}.ndjson"
        path.parent.mkdir(exist_ok=True)
        if name.startswith("otlp") and encoded is in_protobuf:
            table = arrow.table({"value": arrow.array(rows, arrow.binary())})
            path = path.parent / "2026-10-01" / f"{name}.parquet"
            path.parent.mkdir(exist_ok=True)
            arrow.parquet.write_table(table, path)
            continue
        lines = [row if isinstance(row, str) else row.decode() for row in rows]
        path.write_text("\n".join(lines) + "\n")
    (tmp_path / "otel.toml").write_text(PRESET)
    canonical = f"--source=file://{tmp_path / 'canonical'}"
    assert main(["replay", canonical, f"--out={tmp_path / 'expected'}"]) == 0
    kind = "file" if encoded is in_json else "archive"
    arguments = [f"--source={kind}://{tmp_path / 'otlp'}", f"--mapping={tmp_path / 'otel.toml'}"]
    assert main(["replay", *arguments, f"--out={tmp_path / 'found'}"]) == 0
    expected, found = (without_places(tmp_path / each) for each in ("expected", "found"))
    assert found == expected
    assert found[1]
    totals = json.loads((tmp_path / "found" / "totals.json").read_text())
    assert totals["ledger"]["rankings"]["left_out"] == n_left_out


def test_the_documented_commands_run(tmp_path, monkeypatch, capsys):
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


def test_the_collector_writes_records_for_the_preset_keyed_by_trace():
    collector = yaml.safe_load(COLLECTOR.read_text("utf-8"))
    mapping = tomllib.loads(PRESET)
    kafka = collector["exporters"]["kafka"]
    assert kafka["traces"] == {"topic": mapping["rankings"]["topic"]}
    assert kafka["logs"] == {"topic": mapping["judgments"]["topic"]}
    assert kafka["partition_traces_by_id"] is kafka["partition_logs_by_trace_id"] is True
    (dropped,) = collector["processors"].values()
    (span,), (log,) = dropped["traces"]["span"], dropped["logs"]["log_record"]
    documents = re.fullmatch(r'attributes\["(.+)"\] == nil', span)[1]
    escaped = documents.replace(".", r"\.")
    assert mapping["rankings"]["present"] == [f"attributes.{escaped}"]
    evaluation = re.fullmatch(r'event_name != "(.+)"', log)[1]
    assert mapping["judgments"]["where"] == {"eventName": [evaluation]}
    for signal in ("traces", "logs"):
        of = collector["service"]["pipelines"][signal]
        assert of["processors"] == list(collector["processors"])
        assert of["exporters"] == ["kafka"]

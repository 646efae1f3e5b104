"""Foreign records to decoded columns, without a broker: CPU microseconds per record.

`python -m benchmarks.mapping --records 2000 --rounds 9`. Rankings of about 3 kB with 20 rows, and
clicks, compared with the same as canonical messages. OTLP has requests of one retrieval span with
20 documents, or of one evaluation, by the preset otel-genai.
"""

import argparse
import io
import json
import statistics
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import ParseDict
from msgspec.structs import replace
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from benchmarks.pipeline import SKEW_MS
from evaluator.core.types.records import Log
from evaluator.mapping.document import read_document
from evaluator.mapping.messages import messages_of
from evaluator.mapping.record import Record
from evaluator.mapping.schemas import Answer
from evaluator.mapping.stage import Stage
from evaluator.tables import format_table
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records

MAPPING = """
[rankings]
envelope = "cloudevents"
where = { type = ["impression.v2"] }
trace_id = ["data.request.session", "key:"]
node_id = "data.request.query"
timestamp_ms = { path = "data.served_at", unit = "iso" }
model = { const = "shop" }
variant = "data.model.ab"
query = "data.text"
segments = { locale = "data.locale", device = "data.client.kind" }
[rankings.rows]
each = "data.results"
candidate_id = "product"
rank = { path = "position", add = 1 }
score = "relevance"
features = { rel = "f.rel", hist = "f.hist" }
exposed = "seen"
[judgments]
trace_id = "session"
node_id = "query"
timestamp_ms = "at"
judgment_id = "id"
source = { const = "click" }
candidate_id = "product"
grade = { path = "action", table = { click = 1, buy = 3 } }
"""
NOW_MS = 1_769_846_400_000


def main() -> None:
    """Median of the rounds, which are interleaved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    logs: dict[Log, Callable[[int], dict[str, Any]]] = {"rankings": impression, "judgments": click}
    rows = []
    for log, mapping in read_document(MAPPING, "mapping").logs.items():
        documents = [logs[log](n) for n in range(options.records)]
        mapped = messages_of(mapping)
        decode: Any = decode_rankings if log == "rankings" else decode_judgments
        decode = partial(decode, max_future_skew_ms=SKEW_MS)
        plain = [json.dumps(document).encode() for document in documents]
        messages = [message for value in plain for message in found(mapped(Record(value)))]
        schema = avro_of("Event", documents[0])
        framed = [in_avro(schema, document) for document in documents]
        of_avro = Stage(
            replace(mapping, format="avro"),
            max_future_skew_ms=SKEW_MS,
            answers={"1": Answer("AVRO", json.dumps(schema))},
        )
        kind, descriptors = protobuf_of(documents[0])
        of_protobuf = [ParseDict(document, kind()).SerializeToString() for document in documents]
        by_descriptors = Stage(
            replace(
                mapping,
                format="protobuf",
                envelope="none",
                descriptors=descriptors,
                message="Event",
            ),
            max_future_skew_ms=SKEW_MS,
        )
        if by_descriptors.decoded(records(log, of_protobuf), decode).malformed:
            raise AssertionError("records in Protobuf are not read")
        of_json = Stage(mapping, max_future_skew_ms=SKEW_MS)
        in_rows = partial(of_avro.decoded, records(log, framed), decode)
        if in_rows().n_read != len(documents) or in_rows().malformed:
            raise AssertionError("records in Avro are not read")
        steps: dict[str, tuple[list[bytes], Callable[[], object]]] = {
            "canonical": (messages, partial(decode, records(log, messages))),
            "JSON": (plain, partial(of_json.decoded, records(log, plain), decode)),
            "Avro": (framed, in_rows),
            "Protobuf": (
                of_protobuf,
                partial(by_descriptors.decoded, records(log, of_protobuf), decode),
            ),
        }
        steps |= of_otlp(log, options.records, decode)
        watch: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(options.rounds):
            for name, (_, step) in steps.items():
                begun = time.process_time()
                step()
                watch[name].append((time.process_time() - begun) / len(documents) * 1e6)
        for name, each in watch.items():
            size = sum(map(len, steps[name][0])) / len(documents)
            rows.append([log, name, f"{size:.0f}", f"{statistics.median(each):.1f}"])
    print(format_table(["log", "format", "bytes", "us"], rows, numbers=[2, 3]))


def of_otlp(
    log: Log, n_records: int, decode: Any
) -> dict[str, tuple[list[bytes], Callable[[], object]]]:
    """Requests of OTLP and the step that maps and decodes them, by encoding."""
    preset = (files("evaluator.mapping") / "presets" / "otel-genai.toml").read_text("utf-8")
    stage = Stage(read_document(preset, "otel-genai").logs[log], max_future_skew_ms=SKEW_MS)
    make, kind = {
        "rankings": (spans, trace_service_pb2.ExportTraceServiceRequest),
        "judgments": (evaluations, logs_service_pb2.ExportLogsServiceRequest),
    }[log]
    values = {
        "OTLP JSON": [json.dumps(make(n, bytes.hex)).encode() for n in range(n_records)],
        "OTLP Protobuf": [
            ParseDict(make(n, in_base64), kind()).SerializeToString() for n in range(n_records)
        ],
    }
    steps: dict[str, tuple[list[bytes], Callable[[], object]]] = {}
    for name, requests in values.items():
        step = partial(stage.decoded, records(log, requests), decode)
        if step().malformed or len(step().trace_ids) != n_records:
            raise AssertionError(f"records of {name} are not read")
        steps[name] = requests, step
    return steps


def in_base64(value: bytes) -> str:
    """Bytes in the JSON form of Protobuf."""
    return b64encode(value).decode()


def spans(number: int, in_text: Callable[[bytes], str]) -> dict[str, Any]:
    """A request with a retrieval span of 20 documents and 16 attributes."""
    documents = [{"id": f"product-{n}", "score": 1 - n / 32} for n in range(20)]
    attributes = {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.retrieval.query.text": "red shoes",
        "gen_ai.retrieval.documents": json.dumps(documents),
        **{f"app.attribute_{n}": f"value {n}" for n in range(13)},
    }
    span = {
        "traceId": in_text((number + 1).to_bytes(16, "big")),
        "spanId": in_text((number + 1).to_bytes(8, "big")),
        "name": "retrieval catalogue",
        "startTimeUnixNano": str((NOW_MS - 100) * 10**6),
        "endTimeUnixNano": str(NOW_MS * 10**6),
        "attributes": attributes_of(attributes),
    }
    resource = {"attributes": attributes_of({"service.name": "answers"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}


def evaluations(number: int, in_text: Callable[[bytes], str]) -> dict[str, Any]:
    """A request with an evaluation of a document of such a span."""
    attributes = {
        "gen_ai.evaluation.name": "Relevance",
        "gen_ai.retrieval.document.id": "product-3",
        "gen_ai.evaluation.score.value": 1.0,
    }
    record = {
        "timeUnixNano": str(NOW_MS * 10**6),
        "eventName": "gen_ai.evaluation.result",
        "traceId": in_text((number + 1).to_bytes(16, "big")),
        "spanId": in_text((number + 1).to_bytes(8, "big")),
        "attributes": attributes_of(attributes),
    }
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}


def attributes_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Attributes in the form of OTLP."""
    kinds = {str: "stringValue", float: "doubleValue"}
    return [{"key": name, "value": {kinds[type(each)]: each}} for name, each in values.items()]


def avro_of(name: str, value: Any) -> Any:
    """A schema of Avro for values like this one; *name* is that of a record."""
    if isinstance(value, dict):
        fields = [{"name": n, "type": avro_of(f"{name}_{n}", each)} for n, each in value.items()]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(value, list):
        return {"type": "array", "items": avro_of(name, value[0])}
    return {bool: "boolean", int: "long", float: "double", str: "string"}[type(value)]


def protobuf_of(document: dict[str, Any]) -> tuple[Any, bytes]:
    """A message class for documents like this one, and its descriptor set."""
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", syntax="proto3")

    def add(name: str, value: dict[str, Any]) -> None:
        message = file.message_type.add(name=name)
        for number, (member, each) in enumerate(value.items(), 1):
            one = each[0] if isinstance(each, list) else each
            kind = {bool: 8, int: 3, float: 1, str: 9, dict: 11}[type(one)]
            field = message.field.add(name=member, number=number, type=kind, label=1)
            field.label = 3 if isinstance(each, list) else 1
            if isinstance(one, dict):
                field.type_name = f".{name}_{member}"
                add(f"{name}_{member}", one)

    add("Event", document)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))
    return kind, descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def in_avro(schema: Any, document: Any, schema_id: int = 1) -> bytes:
    """A framed record."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, document)
    return b"\x00" + schema_id.to_bytes(4, "big") + stream.getvalue()


def found(outcome: Any) -> list[bytes]:
    """The messages. Raises AssertionError if there are none."""
    if not isinstance(outcome, list):
        raise AssertionError(str(outcome))
    return outcome


def records(log: Log, values: list[bytes]) -> Records:
    """Values as records with keys and timestamps."""
    n = len(values)
    return Records.of(log, 0, range(n), [b"key"] * n, values, [NOW_MS] * n, n)


def impression(number: int) -> dict[str, Any]:
    """A foreign ranking."""
    rows = [
        {
            "product": f"product-{n}",
            "position": n,
            "relevance": (number * 31 + n * 17) % 1_000 / 1_000,
            "title": f"Number {n} of the shop",
            "f": {"rel": n / 32, "hist": (number + n) % 7 / 7},
            "seen": n < 5,
        }
        for n in range(20)
    ]
    request = {"session": f"s-{number}", "query": number, "agent": "Mozilla/5.0 (X11; Linux)"}
    return {
        "specversion": "1.0",
        "type": "impression.v2",
        "source": "/search",
        "data": {
            "served_at": "2026-01-31T08:00:00.123Z",
            "request": request,
            "model": {"ab": "B"},
            "text": "red shoes",
            "locale": "de",
            "client": {"kind": "phone"},
            "results": rows,
        },
    }


def click(number: int) -> dict[str, Any]:
    """A foreign judgment."""
    of_click = {"id": f"c-{number}", "action": "click", "product": "product-3", "at": NOW_MS}
    return {**of_click, "session": f"s-{number}", "query": number, "referrer": "/search?q=red"}


if __name__ == "__main__":
    main()

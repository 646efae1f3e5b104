"""Hostile numbers, odd schemas of Avro, and the sample of a mapping."""

import json
from decimal import Decimal

import pytest

from evaluator.adapters.registry.client import _Asking
from evaluator.cli import main
from evaluator.mapping.avro import texts, unfit
from evaluator.mapping.document import MappingRefused, read_document
from evaluator.mapping.messages import messages_of
from evaluator.mapping.plan import plan_of
from evaluator.mapping.record import Record, kind_of
from evaluator.mapping.sampling import SampleReport
from evaluator.mapping.schemas import Answer
from evaluator.ports import RegistryUnavailable
from evaluator.wire.messages.malformed import Malformed
from tests.mapping.registry import avro
from tests.mapping.test_stage import records_of

CLICK = """
[judgments]
{head}
trace_id = "s"
node_id = "n"
timestamp_ms = {{ path = "t", unit = "s" }}
candidate_id = "c"
grade = {{ const = 1 }}
"""
AVRO = 'format = "avro"\nregistry = "http://registry"'
NINES = "9" * 4_300  # most digits of an integer in Python


def mapping_of(text):
    ((_, mapping),) = read_document(text, "m.toml").logs.items()
    return mapping


def test_an_integer_that_becomes_too_long_is_refused():
    value = f'{{"s":"a","n":1,"t":{NINES},"c":"x"}}'.encode()
    found = messages_of(mapping_of(CLICK.format(head="")))(Record(value))
    assert found == Malformed("mapping", "an integer has too many digits")


def test_a_constant_beyond_a_float_is_refused():
    text = CLICK.format(head="").replace("const = 1", f"const = {NINES}")
    with pytest.raises(MappingRefused, match="grade"):
        read_document(text, "m.toml")


def schema(decimal):
    fields = {"s": "string", "n": "long", "t": "long", "c": "string", "x": decimal}
    named = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "R", "fields": named})


@pytest.mark.parametrize("options", [{"precision": 4, "scale": 2}, {"scale": 2}, {"precision": 0}, {"precision": 2, "scale": 5}])  # fmt: skip
def test_a_decimal_that_no_path_names_does_no_harm(options):
    """By the specification an invalid logical type is ignored."""
    text = schema({"type": "bytes", "logicalType": "decimal", **options})
    plain = schema("bytes")
    value = avro(1, plain, {"s": "a", "n": 1, "t": 5, "c": "x", "x": b"\x05" * 100_000})
    answers, mapping = {"1": Answer("AVRO", text)}, mapping_of(CLICK.format(head=AVRO))
    slow = messages_of(mapping, answers)(Record(value))
    fast = plan_of(mapping).messages(texts(mapping, answers).of(records_of(value)))
    assert slow == [fast[0]] != [None]


@pytest.mark.parametrize("size", [1, 8, 128, 129, 1_790, 415_240])
def test_a_decimal_is_exact_and_bounded(size):
    text = schema("bytes").replace('"name": "t", "type": "long"', '"name": "t", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}')  # fmt: skip
    plain = text.replace('"logicalType": "decimal", ', "")
    value = avro(1, plain, {"s": "a", "n": 1, "t": b"\x7f" * size, "c": "x", "x": b""})
    given = CLICK.format(head=AVRO).replace('trace_id = "s"', 'trace_id = ["none", "t"]')
    found = messages_of(mapping_of(given), {"1": Answer("AVRO", text)})(
        Record(value, timestamp_ms=5)
    )
    if size > 128:
        assert found.reason == "mapping"
    else:
        number = int.from_bytes(b"\x7f" * size, "big")
        assert json.loads(found[0])["trace_id"] == str(Decimal(number))


def test_a_schema_of_binary_cloudevents_is_that_of_their_data():
    head = f'{AVRO}\nenvelope = "cloudevents"'
    text = CLICK.format(head=head)
    text = text.replace('path = "t", unit = "s"', 'path = "time", unit = "iso"')
    for name in "snc":
        text = text.replace(f'= "{name}"', f'= "data.{name}"')
    mapping = mapping_of(text)
    assert unfit(Answer("AVRO", schema("bytes")), mapping) is None
    misses = schema("bytes").replace('"name": "c"', '"name": "z"')
    assert "candidate_id" in unfit(Answer("AVRO", misses), mapping)


@pytest.mark.parametrize("code", ["[1]", "{}"])
def test_a_404_of_another_service_is_a_registry_that_is_away(code):
    with pytest.raises(RegistryUnavailable):
        _Asking(None, "http://r")._read(404, b'{"error_code": %s}' % code.encode())


def test_a_sample_has_the_refusals_of_a_worker():
    text = CLICK.format(head="").replace('path = "t", unit = "s"', 'path = "t"')
    logs = {"judgments": mapping_of(text)}
    names = {"rankings": "r", "judgments": "c"}
    report = SampleReport(logs, names, {}, {}, max_future_skew_ms=300)
    values = [b'{"s":"a","n":1,"t":%d,"c":"x"}' % at for at in (1_300, 1_301, 1_302)]
    lines = [
        line
        for value in values
        for line in report.lines("judgments", 0, 0, Record(value, timestamp_ms=1_000), None)
    ]
    assert ["  message  " in line for line in lines] == [True, False, False]
    assert "refused   future: timestamp_ms 1301 is 301 ms after the record's" in lines[1]
    assert report.failed
    assert len(report.logs["judgments"].reasons) == 1
    assert kind_of(lines[1]) == kind_of(lines[2])


def test_a_sample_without_times_is_refused(tmp_path):
    (tmp_path / "clicks.ndjson").write_text('{"s":"a","n":1,"c":"x"}\n')
    (tmp_path / "rankings.ndjson").write_text("")
    text = CLICK.format(head='topic = "clicks"')
    (tmp_path / "m.toml").write_text(text.replace('timestamp_ms = { path = "t", unit = "s" }', ""))
    arguments = [f"--mapping={tmp_path / 'm.toml'}", f"--source=file://{tmp_path}"]
    assert main(["mapping", "try", *arguments]) == 5


def test_a_sample_shows_an_oversize_record(tmp_path, capsys):
    (tmp_path / "clicks.ndjson").write_text('{"s":"%s"}\n' % ("a" * (1 << 20)))
    (tmp_path / "rankings.ndjson").write_text("")
    (tmp_path / "m.toml").write_text(CLICK.format(head='topic = "clicks"'))
    arguments = [f"--mapping={tmp_path / 'm.toml'}", f"--source=file://{tmp_path}"]
    assert main(["mapping", "try", *arguments]) == 5
    assert "refused   oversize: 1048584 bytes" in capsys.readouterr().out


def test_the_line_of_an_error_after_an_array_of_several_lines():
    text = '[rankings]\npresent = [\n  "a",\n  ["b", "c"]\n]\nnod_id = "n"\n'
    with pytest.raises(MappingRefused, match=r"^m\.toml:6: rankings\.nod_id is not known"):
        read_document(text, "m.toml")

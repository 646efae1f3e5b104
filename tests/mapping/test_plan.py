"""The compiled mapper gives the bytes of the slow path, or leaves the record to it."""

import json
import random
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest

from evaluator.mapping.document import read_document
from evaluator.mapping.messages import messages_of
from evaluator.mapping.plan import plan_of
from evaluator.mapping.record import Record
from evaluator.wire.native import library
from evaluator.wire.records import MAX_RECORD_BYTES, Records
from tests.mapping.test_interpreter import MAPPINGS, mutated, record_of
from tests.repeats import sized
from tests.wire.sanitized import built, printed

ROWS = """
[rankings]
envelope = "cloudevents"
where = { type = ["impression", 2, true] }
present = ["data.results", ["data.text", "key:"]]
trace_id = ["data.request.session", "key:"]
node_id = "data.request.query"
timestamp_ms = { path = "data.at", unit = "iso" }
model = { const = "shop" }
variant = { path = "data.arm", table = { a = "A", 1 = "one", true = "yes", 'é"' = "e" } }
query = "data.text"
exposed_top = { path = "data.top", add = 1 }
segments = { candidate_id = "data.locale", "a\\"b" = "data.kind" }
[rankings.rows]
each = "data.results"
candidate_id = ["id", "alt"]
rank = { path = "position", add = 1 }
score = "relevance"
propensity = "f.p"
published_ms = { path = "born", unit = "ns" }
features = { rel = "f.rel", grade = { path = "f.hist", add = 0.5 }, one = { const = 1 } }
scorers = { bm25 = "f.rel", other = "relevance" }
"""
ARRAYS = """
[rankings]
present = ["data.ids"]
trace_id = "data.request.session"
node_id = { path = ["data.request.query", "type"] }
[rankings.rows]
candidate_id = "data.ids"
score = "data.scores"
exposed = "data.seen"
features = { a = "data.scores" }
"""
IN_ORDER = """
[rankings]
trace_id = "key:"
node_id = "data.us"
timestamp_ms = { path = "data.us", unit = "us" }
[rankings.rows]
each = "data.results"
candidate_id = "id"
exposed = "seen"
"""
CLICK = """
[judgments]
where = { "data.locale" = ["de"] }
trace_id = "data.request.session"
node_id = ["data.request.query", "header:x"]
timestamp_ms = { path = "data.us", unit = "s" }
judgment_id = "type"
source = { const = "click" }
candidate_id = "data.top"
grade = { path = "data.arm", table = { a = 1, b = -1, 1 = 2.5 } }
"""
VOTES = """
[judgments]
trace_id = ["data.request.session", "key:"]
node_id = "data.request.query"
timestamp_ms = { path = "data.us", unit = "us" }
judgment_id = "type"
[judgments.rows]
each = "data.results"
candidate_id = ["id", "alt"]
grade = { path = "relevance", add = 0.5 }
"""
ACTIONS = """
[judgments]
trace_id = "key:"
node_id = "data.us"
[judgments.rows]
each = "data.results"
candidate_id = "id"
grade = { path = "seen", table = { true = 1, false = 0 } }
"""
PLANNED = [ROWS, ARRAYS, IN_ORDER, CLICK, VOTES, ACTIONS]


def mapping_of(text):
    ((_, mapping),) = read_document(text, "m.toml").logs.items()
    return mapping


def records_of(values, key=b"k", times=5):
    n = len(values)
    return Records.of("rankings", 0, range(n), [key] * n, values, [times] * n, n, MAX_RECORD_BYTES)


def planned(text, values, key=b"k"):
    return list(plan_of(mapping_of(text)).messages(records_of(values, key)))


def differing(text, values, key=b"k"):
    """How many records the plan maps; each of them as the slow path does."""
    slow = messages_of(mapping_of(text))
    found = planned(text, values, key)
    for value, message in zip(values, found, strict=True):
        assert message is None or slow(Record(value, key, (), 5)) == [message], value
    return sum(message is not None for message in found)


def documents(chance, n):
    """Records as producers write them, then odd ones, then damaged texts."""
    for _ in range(n):
        record = mutated(record_of(chance), chance)
        if isinstance(record.get("data"), dict) and chance.random() < 0.5:
            record["data"] |= {"at": "2024-02-29T23:59:59.5Z", "kind": "ü\n"}
            rows = record["data"].get("results")
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, dict):
                    row["born"] = 1_700_000_000_123_456_789
        style = {"ensure_ascii": chance.random() < 0.5, "allow_nan": True}
        style["separators"] = chance.choice([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
        value = bytearray(json.dumps(record, **style).encode())
        for _ in range(chance.choice([0, 0, 0, 1, 2]) if value else 0):
            at = chance.randrange(len(value))
            what = chance.randrange(4)
            if what == 0:
                value[at] = chance.choice(b'"\\[]{},:0123456789eE+-. tfnu\x00\x1f\x7f\xff')
            elif what == 1:
                del value[at : at + chance.randrange(1, 4)]
            elif what == 2:
                value[at:at] = value[at : at + chance.randrange(1, 60)]
            else:
                odd = [b"1e999", b"-0.0", b"1e5", b"\\ud83d\\ude00", b"\\u0001", b"null", b"[" * 70]
                value[at:at] = chance.choice(odd)
            if not value:
                break
        yield bytes(value)


@pytest.mark.parametrize("number", range(len(PLANNED)))
def test_a_plan_gives_the_bytes_of_the_slow_path(number):
    chance, n = random.Random(f"plan {number}"), sized(8_000, quick=500)
    n_mapped = 0
    for _ in range(n // 250):
        key = chance.choice([b"k", b"\xc3\xa9", b'"', None, b""])
        n_mapped += differing(PLANNED[number], list(documents(chance, 250)), key)
    assert n_mapped > n / 50


def test_other_mappings_have_no_plan_or_the_bytes_of_the_slow_path():
    chance, n_plans = random.Random(3), 0
    for text in MAPPINGS:
        if plan_of(mapping_of(text)) is not None:
            n_plans += 1
            differing(text, list(documents(chance, sized(3_000, quick=300))))
    assert n_plans == 3


def test_ordinary_records_are_mapped_without_the_slow_path():
    chance = random.Random(1)
    record = record_of(chance)
    while len(record["data"]["results"]) < 2 or isinstance(record["data"]["results"], str):
        record = record_of(chance)
    record["type"] = "impression"
    record["data"] |= {"locale": "de", "us": 7, "arm": "a", "scores": [0.5], "ids": [1], "seen": [True], "results": [
        row | {"born": 10**18, "relevance": 0.1} for row in record["data"]["results"]
    ]}  # fmt: skip
    for text in PLANNED:
        assert differing(text, [json.dumps(record).encode()] * 3) == 3


def test_the_frame_of_a_registry_is_skipped():
    value = b'{"t":"t","ids":["a"],"s":[0.5]}'
    frames = [b"", b"\0\0\0\0\7", b"\1" + b"g" * 16, b" ", b"\1" * 17]
    assert differing(SCORES, [frame + value for frame in frames]) == 5
    others = [b"\2\0\0\0\7", b"\0" * 4, b"\0" * 6, b"\0" * 10, b"\1" * 16]
    assert differing(SCORES, [frame + value for frame in others]) == 0
    assert differing(SCORES, [b"\0", b"\0\0\0\0\7", b"\1", b"\1" * 17]) == 0


SCORES = """
[rankings]
trace_id = "t"
node_id = "t"
[rankings.rows]
candidate_id = "ids"
score = { path = "s", add = 0 }
"""


def scores_of(tokens):
    ids = ",".join(f'"{n}"' for n in range(len(tokens)))
    return f'{{"t":"t","ids":[{ids}],"s":[{",".join(tokens)}]}}'.encode()


@pytest.mark.parametrize("style", ["{!r}", "{:.17g}", "{:.16g}", "{:.15g}", "{:.3g}", "{:.2e}"])
def test_any_double_is_written_as_by_the_encoder(style):
    chance = random.Random(style)
    tokens = []
    for _ in range(sized(10_000, quick=3_000)):
        bits = chance.getrandbits(64)
        (value,) = struct.unpack("<d", struct.pack("<Q", bits))
        small = chance.choice(
            [chance.random(), chance.randrange(10**6) / 1_000, 2.0 ** chance.randrange(-60, 60)]
        )
        value = value if 1e-98 < abs(value) < 1e98 else small
        tokens.append(style.format(value))
    for first in range(0, len(tokens), 100):
        some = [each for each in tokens[first : first + 100] if len(each) < 200]
        (message,) = planned(SCORES, [scores_of(some)])
        expected = msgspec.json.encode([float(each) for each in some])
        assert b'"scores":' + expected in message


@pytest.mark.slow(alone=False)
def test_powers_of_two_are_written_by_their_shortest_digits():
    for value in [2.0**n for n in range(-300, 300)] + [9007199254740993.0, 0.1 + 0.2]:
        (message,) = planned(SCORES, [scores_of([f"{value:.17e}".replace("e+", "e")])])
        assert b'"scores":' + msgspec.json.encode([value]) in message


TIMES = '[judgments]\ntrace_id="t"\nnode_id="t"\ntimestamp_ms={path="at",unit="iso"}\ncandidate_id="t"\ngrade={const=1}\n'  # fmt: skip


def test_times_equal_those_of_the_slow_path():
    chance = random.Random(2)
    values = []
    for _ in range(sized(8_000, quick=2_000)):
        year, month, day = chance.choice([1969, 1970, 2000, 2024, 2026, 2100, 9999]), chance.randrange(14), chance.randrange(33)  # fmt: skip
        text = f"{year:04}-{month:02}-{day:02}T{chance.randrange(25):02}:{chance.randrange(61):02}:{chance.randrange(61):02}"  # fmt: skip
        text += chance.choice(["", ".5", ".1239", ".123456", ".1234567", ".", ",5"])
        text += chance.choice(["", "Z", "z", "+01:00", "-23:59", "+0100", "+24:00", "+01"])
        values.append(json.dumps({"t": "t", "at": text}).encode())
    assert differing(TIMES, values) > len(values) / 10


def test_mappings_that_a_plan_does_not_support_take_the_slow_path(monkeypatch):
    for other in (
        ROWS.replace('"cloudevents"', '"debezium"'),
        ROWS.replace('"data.text"\n', '"data.text[0]"\n'),
        ROWS.replace('["data.request.session", "key:"]', '"header:x"'),
        VOTES.replace("candidate_id = [", 'source = "n"\ncandidate_id = ['),
    ):  # fmt: skip
        assert plan_of(mapping_of(other)) is None
    assert plan_of(mapping_of(ROWS)) is not None
    monkeypatch.setattr(library, "BUILT", None)
    assert plan_of(mapping_of(ROWS)) is None


GRADES_BY_ROW = """
[judgments]
trace_id = "t"
node_id = "t"
[judgments.rows]
each = "r"
candidate_id = "c"
grade = "g"
"""


@pytest.mark.parametrize(
    ("rows", "is_planned"),
    [
        ([("a", 1), ("b", 2.5), (3, 0)], True),
        ([("a", 1), ("b", 2), ("a", 3)], False),  # the last one counts
        ([("3", 1), (3, 2)], False),
        ([], False),
        ([("a", None)], False),
        ([(f"c{n}", n) for n in range(64)], True),
        ([(f"c{n}", n) for n in range(65)], False),
    ],
)
def test_grades_of_rows_are_planned_if_each_candidate_has_one(rows, is_planned):
    value = json.dumps({"t": "t", "r": [{"c": c, "g": g} for c, g in rows]}).encode()
    assert differing(GRADES_BY_ROW, [value]) == is_planned


def given(plan):
    """The plan as the harnesses read it."""
    tables = list(plan._tables.values())
    head = struct.pack("<7q", *map(len, tables), plan._n_slots, plan._n_row_slots)
    return b"".join([head, *(table.tobytes() for table in tables)])


@pytest.mark.slow
def test_no_mutant_causes_an_invalid_memory_access(tmp_path):
    chance = random.Random(7)
    program = built(Path(__file__).with_name("plan_harness.c"), tmp_path)
    parts = [np.ascontiguousarray(library.powers_of_five).tobytes()]
    for text in PLANNED * 40:
        parts.append(given(plan_of(mapping_of(text))))
        values = list(documents(chance, 100))
        room = chance.choice([0, 100, 2_000, 200_000])
        parts.append(struct.pack("<2q", len(values), room))
        for value in values:
            parts += [struct.pack("<q", len(value)), value, struct.pack("<q", 1), b"k"]
    assert int(printed(program, b"".join(parts))) > 1_000


GRADES = '[judgments]\ntrace_id = "t"\nnode_id = "t"\ncandidate_id = "t"\n'


@pytest.mark.parametrize(
    "members",
    [
        'grade = {const = 1}\ntimestamp_ms = {path = "w", unit = "iso", table = {a = 1}}\n',
        'grade = {path = "g", table = {a = 1e308}, add = 1e308}\n',
    ],
)
def test_a_table_whose_values_never_fit_has_no_plan(members):
    assert plan_of(mapping_of(GRADES + members)) is None


@pytest.mark.parametrize("n_steps", [55, 62, 70])
def test_a_path_deeper_than_the_models_allow_takes_the_reference_path(n_steps):
    names = ".".join(["a"] * n_steps)
    text = f'[judgments]\ntrace_id = "{names}"\nnode_id = "n"\ncandidate_id = "n"\ngrade = {{const = 1}}\n'
    value = b'{"n":"x","a":' + b'{"a":' * (n_steps - 1) + b'"v"' + b"}" * n_steps
    assert (planned(text, [value]) == [None]) is (n_steps > 60)

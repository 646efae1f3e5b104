"""Every mapping equals a naive interpreter of its file, on ordinary and unusual records."""

import copy
import json
import random
import tomllib

import pytest

from evaluator.mapping.document import read_document
from evaluator.mapping.messages import messages_of
from evaluator.mapping.record import LeftOut, Record
from evaluator.wire.messages.malformed import Malformed
from tests.mapping.naive import REFUSED, Interpreter
from tests.repeats import sized

MAPPINGS = [
    """
    [rankings]
    where = { type = ["impression", 2, true], "header:x-kind" = ["a"] }
    present = ["data.results", ["data.text", "key:", "header:x-kind"]]
    trace_id = ["data.request.session", "header:x-session", "key:"]
    node_id = "data.request.query"
    timestamp_ms = { path = "data.at", unit = "iso" }
    model = { const = "shop" }
    variant = { path = "data.arm", table = { a = "A", 1 = "one", true = "yes" } }
    query = "data.text"
    exposed_top = { path = "data.top", add = 1 }
    segments = { grade = "data.locale", kind = "type" }
    [rankings.rows]
    each = "data.results"
    candidate_id = ["id", "alt"]
    rank = { path = "position", add = 1 }
    score = "relevance"
    propensity = "f.p"
    published_ms = { path = "born", unit = "s" }
    exposed = "seen"
    features = { rel = "f.rel", grade = { path = "f.hist", add = 0.5 } }
    scorers = { bm25 = "f.rel" }
    """,
    """
    [rankings]
    trace_id = "key:session"
    node_id = "data.results[0].id"
    timestamp_ms = { path = "data.us", unit = "us" }
    [rankings.rows]
    each = "data.results"
    candidate_id = "id"
    score = { path = "position", add = -0.5 }
    """,
    """
    [rankings]
    trace_id = "data.request.session"
    node_id = { path = ["data.request.query", "type"] }
    [rankings.rows]
    candidate_id = "data.ids"
    score = "data.scores"
    exposed = "data.seen"
    features = { a = "data.scores" }
    """,
    """
    [rankings]
    envelope = "debezium"
    trace_id = "request.session"
    node_id = { const = "n" }
    timestamp_ms = { path = "s", unit = "s" }
    [rankings.rows]
    candidate_id = "ids"
    """,
    """
    [judgments]
    where = { "data.locale" = ["de"] }
    trace_id = "data.request.session"
    node_id = "data.request.query"
    timestamp_ms = { path = "data.us", unit = "ns" }
    judgment_id = "type"
    source = { const = "click" }
    candidate_id = "data.results[0].id"
    grade = { path = "data.arm", table = { a = 1, b = -1, 1 = 2.5 } }
    """,
    """
    [judgments]
    trace_id = "data.request.session"
    node_id = "data.request.query"
    timestamp_ms = "data.us"
    judgment_id = "type"
    [judgments.rows]
    each = "data.results"
    candidate_id = "id"
    grade = { path = "position", table = { 0 = 0, 1 = 1, 2 = 3 } }
    """,
    """
    [judgments]
    trace_id = "data.request.session"
    source = "type"
    grade = { const = 1 }
    [judgments.rows]
    each = "data.results"
    node_id = ["alt", "id"]
    judgment_id = "position"
    candidate_id = "id"
    """,
    """
    [judgments]
    trace_id = "data.request.session"
    node_id = "data.request.query"
    [judgments.rows]
    candidate_id = "data.ids"
    grade = "data.scores"
    """,
    """
    [judgments]
    trace_id = "data.request.session"
    [judgments.rows]
    each = "data.results"
    node_id = { path = "position", table = { 0 = "a", 2 = "b" } }
    candidate_id = "id"
    grade = { path = "f.rel", add = 1 }
    """,
]  # fmt: skip


def record_of(chance):
    n = chance.choice([0, 1, 2, 5])
    rows = [
        {
            "id": chance.choice([f"p{k}", k]),
            "position": k,
            "relevance": chance.choice([0.5, 1, -0.0, 1e300, chance.random()]),
            "f": {"rel": chance.random(), "hist": 3, "p": 0.25},
            "born": 1_700_000_000.1234 + k,
            "seen": k < 2,
            "title": "x",
        }
        for k in range(n)
    ]
    data = {
        "request": {"session": chance.choice(["s", 7]), "query": "q"},
        "at": "2026-01-31T08:00:00.1239+01:00",
        "us": 1_700_000_000_123_456,
        "s": 1_700_000_000.999,
        "arm": chance.choice(["a", 1, True, "b"]),
        "text": 'é "quoted"',
        "top": 3,
        "locale": chance.choice(["de", "fr"]),
        "results": rows if chance.random() < 0.9 else json.dumps(rows),
        "ids": [row["id"] for row in rows],
        "scores": [row["relevance"] for row in rows],
        "seen": [row["seen"] for row in rows],
    }
    return {"type": chance.choice(["impression", 2, True]), "data": data}


ODD = [None, "", "x", 0, -3, 1.5, True, [], {}, [1], {"a": 1}, 10**30, "12", "2026-01-31T08:00:00"]


def mutated(value, chance):
    """The record with some of its members replaced, removed or moved."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        here = value
        while True:
            places = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not places:
                break
            place = chance.choice(places)
            if isinstance(here[place], (dict, list)) and here[place] and chance.random() < 0.75:
                here = here[place]
            elif chance.random() < 0.4:
                del here[place]
                break
            else:
                here[place] = copy.deepcopy(chance.choice(ODD))
                break
    return value


def seen(outcome):
    """An outcome in the form of the interpreter."""
    if isinstance(outcome, Malformed):
        return REFUSED
    if isinstance(outcome, LeftOut):
        return "left out", outcome.timestamp_ms
    return [json.loads(message) for message in outcome]


@pytest.mark.parametrize("number", range(len(MAPPINGS)))
def test_a_mapping_equals_the_interpreter(number):
    chance, outcomes = random.Random(number), set()
    document = tomllib.loads(MAPPINGS[number])
    ((log, table),) = document.items()
    mapped = messages_of(read_document(MAPPINGS[number], "m.toml").logs[log])
    naive = Interpreter(log, table)
    for _ in range(sized(1_000, quick=150)):
        record = mutated(record_of(chance), chance)
        if table.get("envelope") == "debezium":
            record = chance.choice([
                {"after": record.get("data"), "op": "c"},
                {"schema": {}, "payload": {"after": record.get("data")}},
                record,
            ])  # fmt: skip
        value = json.dumps(record).encode()
        key = chance.choice([b'{"session": "k"}', b'{"session": 9}'])
        headers = chance.choice([(), (("x-session", b"h"), ("x-kind", b"a")), (("x-kind", b"a"),)])
        timestamp_ms = chance.choice([None, 5])
        expected = naive.outcome(value, key, headers, timestamp_ms)
        given = seen(mapped(Record(value, key, headers, timestamp_ms)))
        assert given == expected, (value, key, headers)
        outcomes.add(expected if expected == REFUSED else type(expected).__name__)
    assert outcomes >= {REFUSED, "list"}

"""The largest outputs: records that become stubs; topics have room for all others."""

import json
import random

import numpy as np
import pytest
from msgspec.structs import replace

from evaluator.core.learning.learner import Learner
from evaluator.core.measures import MeasureSet
from evaluator.core.online.events import MOST_MODELS
from evaluator.core.online.online_learner import MAX_TABLES_BYTES
from evaluator.core.types.records import DeadLetter, FeatureColumns, FinalWindow, OfferedColumns
from evaluator.wire.messages.limits import MAX_FEATURES, MAX_NAME_BYTES
from evaluator.wire.outputs import sizes
from evaluator.wire.outputs.encoding import (
    encode_dead_letters,
    encode_evaluations,
    encode_settled,
    encode_windows,
    training_members,
)
from evaluator.wire.outputs.output_models import Evaluation, Settled
from evaluator.wire.outputs.rows import OutputRows
from evaluator.wire.outputs.settled import decode_settled, order_position_of
from evaluator.wire.outputs.sizes import MAX_KEY_BYTES, MAX_OUTPUT_BYTES, ROOM_BYTES, refused
from evaluator.wire.records import (
    LEADER_OUTPUTS,
    MAX_MESSAGE_BYTES,
    OUTPUTS,
    SCHEMAS,
    WRITTEN,
    OutputRecord,
)
from evaluator.wire.weights.weights_record import MAX_WEIGHTS_BYTES
from tests.core.build import Task, heartbeat, judgment, ranking
from tests.core.learned import numbered, rules, run, settled_query

MEASURES = MeasureSet.parse(["top1", "ndcg@10"])
WORST = "\x01"  # six bytes in JSON
FRAMING_BYTES = 200


def n_bytes(record: OutputRecord) -> int:
    headers = sum(len(name) + len(value) + 8 for name, value in record.headers)
    return len(record.key or b"") + len(record.value) + headers + FRAMING_BYTES


def outputs_of(names_of_query: dict[str, list[str]], *, offers: bool = False):
    """Evaluations and settled queries, each with its judged candidates, from the real engine."""
    task = Task("top1,ndcg@10", retention_ms=10_000, maturity_ms=5_000, offers=offers)
    found = []
    receive = task.engine.receive

    def receiving(rankings, judgments):
        if offers and rankings is not None:
            n = len(rankings)
            rankings = replace(rankings, features=FeatureColumns([("f0",)] * n, np.ones(2 * n)))
        found.append(receive(rankings, judgments))
        return found[-1]

    task.engine.receive = receiving
    task.rank(*(ranking("a b", at=1, trace=query) for query in names_of_query))
    for query, names in names_of_query.items():
        for first in range(0, len(names), 1_000):
            grades = dict.fromkeys(names[first : first + 1_000], 1)
            task.judge(judgment(grades, at=2, trace=query))
    task.read(rankings=[heartbeat(at=9_000)], judgments=[heartbeat(at=9_000)])
    evaluations = [
        record
        for outputs in found
        for record in encode_evaluations(outputs.evaluations, MEASURES, emit_query=True)
    ]
    settled = encode_settled(found[-1].settled, MEASURES, task=0, maturity_ms=5_000)
    return {record.key: record for record in evaluations}, settled


def long_names(n: int) -> list[str]:
    return [f"{number:06}" + WORST * (MAX_NAME_BYTES - 6) for number in range(n)]


@pytest.mark.slow(alone=False)
def test_a_query_with_too_many_grades_becomes_a_stub_with_its_key_n_and_values():
    evaluations, settled = outputs_of(
        {"t-1": ["a"], "t-2": ["a", *long_names(9_999)], "t-3": ["a"]}
    )
    assert [json.loads(record.value)["n"] for record in settled] == [0, 1, 2]
    stub = json.loads(settled[1].value)
    whole = json.loads(settled[0].value)
    assert stub["too_large"] > 9_999 * 6 * 250 > MAX_OUTPUT_BYTES
    assert list(stub) == [*whole, "too_large"]
    assert (stub["trace_id"], stub["grades"]) == ("t-2", {})
    assert stub["values"]["served"]["top1"] == 1.0
    Settled.model_validate_json(settled[1].value)
    evaluation = json.loads(evaluations[settled[1].key].value)
    Evaluation.model_validate_json(evaluations[settled[1].key].value)
    assert (evaluation["revision"], evaluation["grades"], evaluation["rank"]) == (
        10,
        {},
        {"served": 1},
    )
    assert "query" not in evaluation
    for record in [*settled, *evaluations.values()]:
        assert len(record.value) < 2_000


def test_a_record_exactly_at_the_limit_is_written_whole(monkeypatch):
    evaluations, settled = outputs_of({"t-1": ["a", "b"]})
    for records in (list(evaluations.values()), settled):
        rows = OutputRows.of(records)
        monkeypatch.setattr(sizes, "MAX_OUTPUT_BYTES", len(records[0].value))
        assert sizes.bounded(rows) == records
        monkeypatch.setattr(sizes, "MAX_OUTPUT_BYTES", len(records[0].value) - 1)
        assert json.loads(sizes.bounded(rows)[0].value)["too_large"] == len(records[0].value)


def test_the_learner_reads_a_stub_as_a_query_without_features(monkeypatch):
    monkeypatch.setattr(sizes, "MAX_OUTPUT_BYTES", 500)
    _, settled = outputs_of({"t-1": ["a"], "t-2": ["a", *map(str, range(100))]}, offers=True)
    whole, stub = (decode_settled(record.value, MEASURES) for record in settled)
    assert (whole.n, stub.n) == (0, 1)
    assert (whole.grades, stub.grades) == ({"a": 1.0}, {})
    assert (whole.feature_names, stub.feature_names) == (("f0",), None)
    assert stub.served_units.keys() == whole.served_units.keys()
    assert order_position_of(settled[1].value) == (5_001, "t-2", "n")


@pytest.mark.slow(alone=False)
def test_stubs_do_not_depend_on_other_records(monkeypatch):
    evaluations, settled = outputs_of({f"t-{n}": ["a", *map(str, range(n))] for n in range(60)})
    for records in (list(evaluations.values()), settled):
        monkeypatch.setattr(sizes, "MAX_OUTPUT_BYTES", 500)
        together = sizes.bounded(OutputRows.of(records))
        assert 0 < sum("too_large" in json.loads(each.value) for each in together) < 60
        assert together == [one for r in records for one in sizes.bounded(OutputRows.of([r]))]


# Room


def test_every_output_topic_accepts_its_largest_record():
    assert ROOM_BYTES.keys() == {*WRITTEN, *LEADER_OUTPUTS, SCHEMAS}
    assert {*OUTPUTS} < ROOM_BYTES.keys()
    name = WORST * MAX_NAME_BYTES
    (window,) = encode_windows(
        [FinalWindow(2**62, name, name, name, "top1", 2**62, 2**200)],
        MeasureSet.parse(["top1"]),
        window_ms=2**62,
        task=10**6,
    )
    assert n_bytes(window) < ROOM_BYTES["windows"]
    letter = DeadLetter(
        "rankings", 2**62, "schema", "ä" * 300, b"k" * 10**6, b"v" * MAX_MESSAGE_BYTES
    )
    (dead,) = encode_dead_letters([letter], {"rankings": "r" * 249}, partition=10**6)
    assert n_bytes(dead) < ROOM_BYTES["dead-letters"]
    key = json.dumps([name, name]).encode()
    fingerprint = (("fingerprint", b"l" * 64),)
    largest = OutputRecord(key, b"v" * MAX_OUTPUT_BYTES, fingerprint)
    assert n_bytes(largest) < min(ROOM_BYTES["evaluations"], ROOM_BYTES["settled"])


def test_a_long_key_of_a_dead_letter_is_cut_and_its_length_kept():
    long, short = b"k" * (MAX_KEY_BYTES + 1), b"k" * MAX_KEY_BYTES
    letters = [
        DeadLetter("judgments", n, "late", "", key, b"v") for n, key in enumerate((long, short))
    ]
    cut, whole = encode_dead_letters(letters, {"judgments": "judgments"}, partition=0)
    assert (cut.key, whole.key) == (short, short)
    assert dict(cut.headers)["key_truncated"] == str(len(long)).encode()
    assert "key_truncated" not in dict(whole.headers)


def refused_letter(letter: OutputRecord):
    found = refused(letter, "dead-letters", topic="dead-letters", partition=0)
    assert found.letter is None, "a dead letter causes no other"
    assert found.counts == (found.smaller is None)
    return found


@pytest.mark.parametrize("n_value", [0, 1, 64 * 1024, 64 * 1024 + 1, 10**6])
@pytest.mark.parametrize("n_key", [None, 0, 1, 10**6])
def test_cutting_a_dead_letter_ends_and_keeps_the_original_lengths(n_value, n_key):
    rng = random.Random(1)
    key = None if n_key is None else rng.randbytes(n_key)
    letter = OutputRecord(key, rng.randbytes(n_value), (("reason", b"late"),))
    steps = [letter]
    while (smaller := refused_letter(steps[-1]).smaller) is not None:
        assert n_bytes(smaller) < n_bytes(steps[-1]) + 40
        steps.append(smaller)
    assert len(steps) <= 4
    last = steps[-1]
    assert (last.key or b"", last.value) == (b"", b"")
    letter_headers = dict(last.headers)
    assert int(letter_headers.get("truncated", 0)) == n_value
    assert int(letter_headers.get("key_truncated", 0)) == (n_key or 0)


def test_the_dead_letter_of_an_output_has_its_key_and_a_remedy():
    record = OutputRecord(b'["t","n"]', b"v" * 5_000_000)
    smaller, letter = refused(record, "settled", topic="x-settled", partition=3)
    assert smaller is None
    headers = {name: value.decode() for name, value in letter.headers}
    assert (letter.key, letter.value) == (b'["t","n"]', b"")
    assert (headers["topic"], headers["partition"]) == ("x-settled", "3")
    assert headers["reason"] == "oversize_output"
    assert "5000000 bytes" in headers["detail"]
    assert "max.message.bytes" in headers["detail"]


def test_a_refused_record_is_replaced_by_a_stub_and_a_refused_stub_by_nothing():
    _, settled = outputs_of({"t-1": ["a", *map(str, range(100))]})
    stub, letter = refused(settled[0], "settled", topic="settled", partition=0)
    row = json.loads(stub.value)
    assert (row["n"], row["grades"], row["too_large"]) == (0, {}, len(settled[0].value))
    assert letter.key == settled[0].key
    again = refused(stub, "settled", topic="settled", partition=0)
    assert again.smaller is None
    assert again.counts


# Training data


@pytest.mark.parametrize(("letter", "is_left_out"), [("x", False), ("ä", False), (WORST, True)])
def test_feature_names_that_are_too_long_when_escaped_are_not_learned_from(letter, is_left_out):
    n = MAX_NAME_BYTES - 3
    names = tuple(f"{k:03}" + letter * (n // len(letter.encode())) for k in range(MAX_FEATURES))
    offered = OfferedColumns([names], [["a"]], [np.ones((1, 256))], [None], [None], [{"s": 1}])
    (text,) = training_members(offered)
    assert ("too_large" in json.loads(b"{" + text[1:] + b"}")) == is_left_out


@pytest.mark.slow(alone=False)
def test_the_state_of_the_maximum_number_of_models_fits_into_its_topic():
    names = tuple(f"{k:03}" + "x" * (MAX_NAME_BYTES - 3) for k in range(MAX_FEATURES))
    rng, chance, queries = np.random.default_rng(1), random.Random(1), []
    for n in range(1_000):
        features = rng.normal(size=(5, MAX_FEATURES))
        best = f"c{np.argmax(features.sum(axis=1))}"
        query = settled_query(n, chance)
        queries.append(query._replace(features=features, feature_names=names, grades={best: 1.0}))
    learner = Learner(scale="within_query", optimizer="adam")
    states = [
        json.dumps(interval.state) for interval in run(numbered(queries), rules(learner=learner))
    ]
    assert max(map(len, states)) > 3 * MAX_FEATURES * MAX_NAME_BYTES, "the names are in it"
    copies = 8  # of tables, which share MAX_TABLES_BYTES among themselves
    most = MOST_MODELS * max(map(len, states)) + copies * MAX_TABLES_BYTES
    assert most < MAX_WEIGHTS_BYTES <= min(ROOM_BYTES["weights"], ROOM_BYTES["weights-log"])

"""What the steward writes: records after their parents, and a state that one can go on from."""

import json
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.measures import MeasureSet
from evaluator.core.steward import Steward
from evaluator.core.types import Mark
from evaluator.wire.output_models import Settled
from evaluator.wire.settled import SettledUnreadable, decode_settled
from evaluator.wire.stewardship import STATE_KEY, Scribe, StateRefused, read_state
from evaluator.wire.weights import Weights, checksum_of, read_weights
from tests.core.stewarded import N_TASKS, interleaved, rules, world
from tests.repeats import examples

WORLD = world(3, 600)
MEASURES = MeasureSet.parse(["mrr", "hit@1", "top1"])


def said_by(queries, random, *, state=None, kill_after=None):
    """All records of a steward, from a state record on; killed after some of them have arrived."""
    scribe = Scribe("lineage", {"loss": "softmax"})
    stored = None
    if state is not None:
        found = read_state(state)
        stored, scribe.parents = found.state, found.parents
    steward = Steward(rules(), n_tasks=N_TASKS, state=stored)
    said = []
    for batch in interleaved(queries, random):
        for turned in steward.receive(batch):
            for record in scribe.records(turned):
                if len(said) == kill_after:
                    return said
                said.append(record)
    return said


WHOLE = said_by(WORLD, Random(0))


def log_of(said):
    return [record for topic, record in said if topic == "weights-log"]


def last_state(said):
    return next((r.value for _, r in reversed(said) if r.key == STATE_KEY), None)


@settings(max_examples=examples(16), deadline=None)
@given(st.integers(0, 1 << 64), st.integers(0, len(WHOLE)))
def test_killed_after_any_record_a_successor_goes_on_with_the_same_bytes(seed, kill_after):
    random = Random(seed)
    before = said_by(WORLD, random, kill_after=kill_after)
    after = said_by(WORLD, random, state=last_state(before))
    assert before == WHOLE[:kill_after]
    assert after == WHOLE[len(WHOLE) - len(after) :]
    assert len(before) + len(after) >= len(WHOLE)


def test_every_record_names_the_one_before_it():
    log = [json.loads(record.value) for record in log_of(WHOLE)]
    assert [each["status"] for each in log][:2] == ["candidate", "promoted"]
    assert [each["version"] for each in log] == list(range(1, len(log) + 1))
    assert [each["parent"] for each in log] == [None, *(each["checksum"] for each in log[:-1])]
    for each in log:
        assert each["checksum"] == checksum_of(each)
        Weights.model_validate(each)


def test_only_what_is_live_is_under_the_name_of_its_model():
    live = [r for topic, r in WHOLE if topic == "weights" and r.key != STATE_KEY]
    promoted = [r for r in log_of(WHOLE) if json.loads(r.value)["status"] == "promoted"]
    assert live == promoted
    assert {record.key for record in live} == {b'"m"'}
    assert read_weights(live[-1].value).weights == json.loads(live[-1].value)["weights"]


def test_a_promotion_brings_its_evidence():
    promoted = json.loads(log_of(WHOLE)[1].value)
    assert promoted["of_version"] == 1
    assert promoted["evidence"]["for"] >= 100
    assert promoted["evidence"]["traces"] >= 50
    assert promoted["ranges"].keys() == {f"settled-{task}" for task in range(N_TASKS)}
    assert promoted["settings"] == {"loss": "softmax"}


def test_a_state_that_was_changed_is_refused():
    state = last_state(WHOLE)
    assert read_state(state).lineage == "lineage"
    for other in (
        state.replace(b'"lineage":"lineage"', b'"lineage":"linEage"'),
        b"{}",
        b"[1]",
        b"{",
    ):
        with pytest.raises(StateRefused):
            read_state(other)


# --- settled, read again ------------------------------------------------------------------------


def test_a_settled_record_is_read_as_it_was_meant():
    text = (
        b'{"n":7,"task":1,"trace_id":"t","node_id":"n","event_time_ms":5,"settled_time_ms":9,'
        b'"offset":3,"model":"m","variant":"v","grades":{"a":2,"b":0.5},'
        b'"values":{"served":{"mrr":0.3333333333330302,"hit@1":1.0,"top1":1.0},"bm25":{"mrr":1.0}},'
        b'"sources":{"human":1},"candidate_ids":["a","b"],"feature_names":["x"],'
        b'"features":[[1],[-2.5]]}'
    )
    Settled.model_validate_json(text)
    query = decode_settled(text, MEASURES)
    assert (query.task, query.n, query.place) == (1, 7, (9, "t", "n"))
    assert query.served_units == {"mrr": round((1 << 40) / 3), "top1": 1 << 40}
    assert (query.grades, query.sources) == ({"a": 2.0, "b": 0.5}, {"human": 1})
    assert query.feature_names == ("x",)
    assert np.array_equal(query.features, [[1.0], [-2.5]])


def test_marks_are_read_and_nothing_else_is():
    mark = decode_settled(b'{"task":2,"watermark_ms":10,"n":3}', MEASURES)
    assert mark == (2, Mark(10, 3))
    with pytest.raises(SettledUnreadable, match="set learning"):
        decode_settled(b'{"task":2,"n":3,"settled_time_ms":4}', MEASURES)
    ragged = (
        b'{"task":2,"n":3,"settled_time_ms":4,"sources":{},"candidate_ids":["a","b"],'
        b'"feature_names":["x"],"features":[[1],[1,2]]}'
    )
    for text in (ragged, b"", b"{}", b"[]", b'{"task":2,"n":3}', b"\xff"):
        with pytest.raises(SettledUnreadable):
            decode_settled(text, MEASURES)

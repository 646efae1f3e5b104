"""The records of the leader, in order after their parents, and a state to continue from."""

import json
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.columns.byte_strings import ByteStrings
from evaluator.core.features import FEATURE_NAMES, Success, SuccessTable
from evaluator.core.measures import MeasureSet
from evaluator.core.online.events import Command
from evaluator.core.online.online_learner import OnlineLearner
from evaluator.core.online.ordered_merge import PLACE
from evaluator.core.types.records import WatermarkRecord
from evaluator.wire.canonical import checksum_of
from evaluator.wire.outputs.output_models import Settled
from evaluator.wire.outputs.settled import (
    SettledUnreadable,
    WatchedReader,
    decode_settled,
    watched_of,
)
from evaluator.wire.weights.leader_state import (
    STATE_KEY,
    RecordWriter,
    StateRefused,
    command_record,
    read_command,
    read_state,
)
from evaluator.wire.weights.weights_record import Weights, read_weights
from tests.core.described import described_world, graphs
from tests.core.learned import N_TASKS, interleaved, rules, world
from tests.repeats import examples
from tests.wire.test_watched_decoder import listed

WORLD = world(3, 600)
DESCRIBED = described_world(graphs, n_queries=600)
MEASURES = MeasureSet.parse(["mrr", "hit@1", "top1"])


def leader_records(queries, random, *, state=None, kill_after=None, made=rules):
    """All records of a leader, from a state record on; killed after some of them have arrived."""
    record_writer = RecordWriter("fingerprint", {"loss": "softmax"})
    stored = None
    if state is not None:
        found = read_state(state)
        stored, record_writer.parents = found.state, found.parents
    leader = OnlineLearner(made(), n_tasks=N_TASKS, state=stored)
    emitted = []
    for batch in interleaved(queries, random):
        for interval in leader.receive(batch):
            for record in record_writer.records(interval):
                if len(emitted) == kill_after:
                    return emitted
                emitted.append(record)
    return emitted


@cache
def whole():
    return leader_records(WORLD, Random(0))


def of_intervals():
    """Several intervals of a maturity, so that tables wait to be in force."""
    return rules(learning_interval_ms=20_000)


@cache
def whole_described():
    return leader_records(DESCRIBED, Random(0), made=of_intervals)


def log_of(records):
    return [record for topic, record in records if topic == "weights-log"]


def last_state(records):
    return next((r.value for _, r in reversed(records) if r.key == STATE_KEY), None)


@pytest.mark.slow(alone=False)
@settings(max_examples=examples(16), deadline=None)
@given(st.integers(0, 1 << 64), st.data())
def test_a_successor_continues_with_equal_bytes_after_a_kill_at_any_record(seed, data):
    random, kill_after = Random(seed), data.draw(st.integers(0, len(whole())))
    before = leader_records(WORLD, random, kill_after=kill_after)
    after = leader_records(WORLD, random, state=last_state(before))
    assert before == whole()[:kill_after]
    assert after == whole()[len(whole()) - len(after) :]
    assert len(before) + len(after) >= len(whole())


@pytest.mark.slow(alone=False)
@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 1 << 64), st.data())
def test_a_successor_continues_with_equal_bytes_with_described_candidates(seed, data):
    random, kill_after = Random(seed), data.draw(st.integers(0, len(whole_described())))
    before = leader_records(DESCRIBED, random, kill_after=kill_after, made=of_intervals)
    after = leader_records(DESCRIBED, random, state=last_state(before), made=of_intervals)
    assert before == whole_described()[:kill_after]
    assert after == whole_described()[len(whole_described()) - len(after) :]
    assert len(before) + len(after) >= len(whole_described())


def test_weights_include_the_table_of_their_features():
    log = [read_weights(record.value) for record in log_of(whole_described())]
    assert [each.status for each in log][:2] == ["challenger", "promoted"]
    for each in log:
        table = each.table()
        assert each.feature_names == list(FEATURE_NAMES)
        assert set(table.successes) == {("graph", kind) for kind in "abcd"}
        good, bad = table.success_rates("graph", ["c", "a"])
        assert good == 0.5 > bad + 0.3  # a grade of 1 is half of 2
    assert log[0].table() == log[1].table()


def test_weights_of_given_features_have_no_table():
    for record in log_of(whole()):
        assert "success_rates" not in json.loads(record.value)
        assert read_weights(record.value).table() is None


@pytest.mark.parametrize(
    "table", [None, SuccessTable(), SuccessTable({("tool", "\u00e4"): Success(3, 4)}, 2)]
)
def test_a_command_is_read_as_written(table):
    command = Command(3, "roll_back", "as before", (0.5, 1.0), ("a", "b"), table)
    assert read_command(command_record(command)) == command


def test_a_command_with_an_impossible_table_is_refused():
    command = Command(
        3, "roll_back", "as before", (0.5,), ("a",), SuccessTable({("tool", "a"): Success(3, 4)})
    )
    for bad in (b'["page","a",3,4]', b'["tool","a",3,-4]', b'["tool","a"]', b'["tool","a","3",4]'):
        with pytest.raises(ValueError, match=r"operator command|impossible row|to unpack"):
            read_command(command_record(command).replace(b'["tool","a",3,4]', bad))


def test_every_record_names_the_one_before_it():
    log = [json.loads(record.value) for record in log_of(whole())]
    assert [each["status"] for each in log][:2] == ["challenger", "promoted"]
    assert [each["version"] for each in log] == list(range(1, len(log) + 1))
    assert [each["parent"] for each in log] == [None, *(each["checksum"] for each in log[:-1])]
    for each in log:
        assert each["checksum"] == checksum_of(each)
        Weights.model_validate(each)


def test_only_live_weights_have_the_model_name_as_key():
    live = [r for topic, r in whole() if topic == "weights" and r.key != STATE_KEY]
    promoted = [r for r in log_of(whole()) if json.loads(r.value)["status"] == "promoted"]
    assert live == promoted
    assert {record.key for record in live} == {b'"m"'}
    assert read_weights(live[-1].value).weights == json.loads(live[-1].value)["weights"]


def test_a_promotion_includes_its_evidence():
    promoted = json.loads(log_of(whole())[1].value)
    assert promoted["of_version"] == 1
    assert promoted["evidence"]["for"] >= 100
    assert promoted["evidence"]["traces"] >= 50
    assert promoted["ranges"].keys() == {f"settled-{task}" for task in range(N_TASKS)}
    assert promoted["settings"] == {"loss": "softmax"}


def test_a_state_that_was_changed_is_refused():
    state = last_state(whole())
    assert read_state(state).fingerprint == "fingerprint"
    for other in (
        state.replace(b'"fingerprint":"fingerprint"', b'"fingerprint":"linEage"'),
        b"{}",
        b"[1]",
        b"{",
    ):
        with pytest.raises(StateRefused):
            read_state(other)


# --- settled, read again ------------------------------------------------------------------------


def test_a_settled_record_is_read_as_the_query_that_was_written():
    text = (
        b'{"n":7,"task":1,"trace_id":"t","node_id":"n","event_time_ms":5,"settled_time_ms":9,'
        b'"offset":3,"model":"m","variant":"v","grades":{"a":2,"b":0.5},'
        b'"values":{"served":{"mrr":0.3333333333330302,"hit@1":1.0,"top1":1.0},"bm25":{"mrr":1.0}},'
        b'"sources":{"human":1},"candidate_ids":["a","b"],"feature_names":["x"],'
        b'"features":[[1],[-2.5]]}'
    )
    Settled.model_validate_json(text)
    query = decode_settled(text, MEASURES)
    assert (query.task, query.n, PLACE(query)) == (1, 7, (9, "t", "n"))
    assert query.served_units == {"mrr": round((1 << 40) / 3), "top1": 1 << 40}
    assert (query.grades, query.sources) == ({"a": 2.0, "b": 0.5}, {"human": 1})
    assert query.feature_names == ("x",)
    assert np.array_equal(query.features, [[1.0], [-2.5]])


def test_watermark_records_are_read_and_other_values_refused():
    record = decode_settled(b'{"task":2,"watermark_ms":10,"n":3}', MEASURES)
    assert record == (2, WatermarkRecord(10, 3))
    for text in (b"", b"{}", b"[]", b'{"task":2,"n":3}', b"\xff"):
        with pytest.raises(SettledUnreadable):
            decode_settled(text, MEASURES)


@pytest.mark.parametrize(
    "invalid",
    [
        b'"candidate_ids":["a","b"],"feature_names":["x"],"features":[[1],[1,2]]',
        b'"candidate_ids":["a"],"feature_names":["x"],"features":[["1"]]',
        b'"candidate_ids":["a"],"feature_names":["x"],"features":[[1]],"propensities":[0.5,0.5]',
        b'"candidate_ids":["a"],"feature_names":["x"],"features":[[1]],"propensities":[2]',
        b'"candidate_ids":1',
        b'"sources":{"human":-1}',
        b'"logged":{"a":[0,1]}',
        b'"exposed":"-1"',
    ],
)
def test_invalid_training_data_are_dropped_and_the_query_is_kept(invalid):
    text = (
        b'{"n":7,"task":1,"trace_id":"t","node_id":"n","settled_time_ms":9,"model":"m",'
        b'"grades":{"a":2},"values":{"served":{"mrr":1.0}},%b}'
    )
    query = decode_settled(text % invalid, MEASURES, offset=3)
    assert (PLACE(query), query.grades) == ((9, "t", "n"), {"a": 2.0})
    assert query.invalid_training_data
    columns, offsets = [("served", "mrr")], np.array([3])
    without_learning = WatchedReader({"mrr": "mrr"}, columns)(
        ByteStrings.of([text % invalid]), offsets
    )
    assert listed(without_learning) == listed((watched_of([query], offsets.tolist(), columns), []))
    assert not decode_settled(text % b'"sources":{}', MEASURES).invalid_training_data
    with pytest.raises(SettledUnreadable):
        decode_settled(text.replace(b'"task":1', b'"task":-1') % invalid, MEASURES)

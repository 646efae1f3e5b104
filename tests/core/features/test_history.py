"""The table of success rates: its arithmetic, its state, its limit."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.features import Described, Graph, Success, SuccessTable, history, learned
from tests.repeats import examples

ONE = 1 << 40
names = st.sampled_from(["a", "b", "ä", ""])
grades = st.one_of(st.integers(-1, 31).map(float), st.floats(-1, 31))


def tools(**of):
    return Described("tool", "q", list(of)), {name: float(grade) for name, grade in of.items()}


def success_rate(table, name, kind="tool"):
    (value,) = table.success_rates(kind, [name])
    return value


def test_success_rates_are_smoothed_with_ten_queries_of_one_half():
    table = learned(SuccessTable(), [tools(a=2, b=0), tools(a=1, b=0), tools(a=5)], max_grade=2)
    assert success_rate(table, "a") == (1 + 0.5 + 1 + 0.5 * 10) / (3 + 10)
    assert success_rate(table, "b") == (0 + 0 + 0.5 * 10) / (2 + 10)
    assert success_rate(table, "c") == 0.5


def test_graphs_of_one_type_in_a_query_count_once_by_their_mean():
    graphs = [Graph("plan"), Graph("plan"), Graph("chat"), Graph("plan")]
    query = Described("graph", "q", ["g1", "g2", "g3", "g4"], graphs=graphs)
    table = learned(SuccessTable(), [(query, {"g1": 2.0, "g2": 0.0, "g3": 1.0})], max_grade=2)
    assert table.successes["graph", "plan"] == Success(round((1 + 0) / 2 * ONE), 1)
    assert table.successes["graph", "chat"] == Success(round(0.5 * ONE), 1)
    assert ("tool", "plan") not in table.successes


def test_a_repeated_candidate_counts_once_at_its_first_position():
    query = Described("graph", "q", ["g", "g"], graphs=[Graph("first"), Graph("second")])
    assert learned(SuccessTable(), [(query, {"g": 2.0})]).successes == {
        ("graph", "first"): Success(ONE, 1)
    }


def test_unjudged_candidates_and_other_ids_are_not_counted():
    query = Described("tool", "q", ["a", "b"])
    table = learned(SuccessTable(), [(query, {"b": -1.0, "other": 2.0})])
    assert table == SuccessTable()


@settings(max_examples=examples(100))
@given(st.lists(st.dictionaries(names, grades, max_size=4), max_size=8), st.data())
def test_order_and_batches_do_not_matter(queries, data):
    judged = [(Described("tool", "q", list(one)), one) for one in queries]
    cut = data.draw(st.integers(0, len(judged)))
    at_once = learned(SuccessTable(), judged)
    in_two = learned(learned(SuccessTable(), judged[:cut]), judged[cut:])
    assert in_two == at_once
    assert learned(SuccessTable(), data.draw(st.permutations(judged))) == at_once


@settings(max_examples=examples(100))
@given(st.lists(st.dictionaries(names, grades, max_size=4), max_size=8))
def test_a_state_is_restored_exactly_from_json(queries):
    table = learned(SuccessTable(), [(Described("tool", "q", list(one)), one) for one in queries])
    text = json.dumps(table.state())
    back = SuccessTable.load(json.loads(text))
    assert back == table
    assert json.dumps(back.state()) == text
    assert all(0 < value < 1 for value in back.success_rates("tool", ["a", "b", "ä", "?"]))


def test_a_billion_queries_are_still_exact():
    n = 10**9
    table = learned(SuccessTable({("tool", "a"): Success(n * ONE - 1, n)}), [tools(a=2)])
    assert table.successes["tool", "a"] == Success((n + 1) * ONE - 1, n + 1)


def test_learning_does_not_change_the_former_table():
    before = learned(SuccessTable(), [tools(a=2)])
    learned(before, [tools(a=0), tools(b=1)])
    assert before.successes == {("tool", "a"): Success(ONE, 1)}


def test_names_beyond_the_limit_stay_unknown_and_are_counted(monkeypatch):
    monkeypatch.setattr(history, "MAX_NAMES", 2)
    table = learned(SuccessTable(), [tools(a=2, b=2), tools(c=2, a=2), tools(c=0)])
    assert set(table.successes) == {("tool", "a"), ("tool", "b")}
    assert table.successes["tool", "a"].queries == 2
    assert table.over_limit == 2
    assert success_rate(table, "c") == 0.5


@pytest.mark.parametrize(
    "state",
    [
        {"format": 1, "successes": [["tool", "a", ONE + 1, 1]], "over_limit": 0},
        {"format": 1, "successes": [["tool", "a", -1, 1]], "over_limit": 0},
    ],
)
def test_a_state_in_another_form_is_refused(state):
    with pytest.raises(ValueError, match="history"):
        SuccessTable.load(state)

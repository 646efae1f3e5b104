"""Second and further judgments of queries: alone, and many of them, merged in columns.

Every sequence is run with one query, and with many queries at the same time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.core.build import Record, Task, heartbeat, judgment, ranking

CROWD = 40

ReadBatches = Callable[..., Task]


@pytest.fixture(params=[1, CROWD], ids=["one query", "many queries"])
def read_batches(request: pytest.FixtureRequest) -> ReadBatches:
    """Reads batches of (grades, other members of a judgment), each for every query."""

    def read_all(*batches: Sequence[tuple[Any, dict[str, Any]]], **settings: Any) -> Task:
        task = Task("mrr", **settings)
        task.rank(*(ranking("a b c d", trace=f"t{i}") for i in range(request.param)))
        for batch in batches:
            task.judge(*for_all_queries(batch, request.param))
        return task

    return read_all


def for_all_queries(batch: Sequence[tuple[Any, dict[str, Any]]], n_queries: int) -> list[Record]:
    """Each judgment for all queries, one after the other; `name` becomes the judgment_id."""
    return [
        judgment(grades, trace=f"t{i}", **more) for grades, more in batch for i in range(n_queries)
    ]


def last_states(task: Task) -> list[tuple[int, list[tuple[str, float]]]]:
    """Last revision and grades in their order, of each query."""
    traces = {evaluation.trace_id for evaluation in task.evaluations}
    last = [task.last(trace) for trace in sorted(traces)]
    return [(one.revision, list(one.grades.items())) for one in last]


def common_state(task: Task) -> tuple[int, list[tuple[str, float]]]:
    """The common state of all queries, which must agree."""
    found = last_states(task)
    assert task.total("running")[0] == len(found) * bool(found[0][1])
    assert all(one == found[0] for one in found)
    return found[0]


def outcomes_per_query(task: Task) -> dict[str, int]:
    """Outcomes of judgments, per query."""
    n = task.count("queries", "started")
    counts = task.counts("judgments")
    assert not any(count % n for count in counts.values())
    return {outcome: count // n for outcome, count in counts.items()}


def all_groupings(*judgments: tuple[Any, dict[str, Any]]) -> list[list[Any]]:
    """The same judgments in one batch, in one each, and the last one or the last two together."""
    groupings = [[judgments], [[one] for one in judgments]]
    groupings.append([[one] for one in judgments[:-2]] + [judgments[-2:]])
    groupings.append([judgments[:-1], judgments[-1:]])
    return groupings


def test_grades_are_in_order_of_first_application(read_batches):
    for grouping in all_groupings(
        ({"c": 1, "a": 0}, {"at": 1}),
        ({"b": 2, "a": 3}, {"at": 2}),
        ({"d": 1, "c": 0, "b": 1}, {"at": 3}),
    ):
        task = read_batches(*grouping)
        assert common_state(task) == (3, [("c", 0), ("a", 3), ("b", 1), ("d", 1)])
        assert task.value("t0") == 1.0
        assert outcomes_per_query(task) == {"applied": 3}


def test_the_later_timestamp_wins_per_candidate_in_any_arrival_order(read_batches):
    for grouping in all_groupings(
        ({"a": 1, "b": 1}, {"at": 5}),
        ({"a": 2, "c": 2}, {"at": 9}),
        ({"a": 3, "b": 3, "c": 3, "d": 3}, {"at": 7}),
    ):
        task = read_batches(*grouping)
        assert common_state(task) == (3, [("a", 2), ("b", 3), ("c", 2), ("d", 3)])


def test_with_equal_timestamps_the_later_offset_wins(read_batches):
    for grouping in all_groupings(*(({"a": i, "b": 0}, {"at": 5}) for i in range(4))):
        assert common_state(read_batches(*grouping)) == (4, [("a", 3), ("b", 0)])


def test_every_applied_judgment_is_recognised_by_its_id(read_batches):
    new = [({"a": i}, {"at": i, "name": f"j{i}"}) for i in range(3)]
    for grouping in all_groupings(*new):
        task = read_batches(
            *grouping, new, [({"a": 9}, {"at": 9, "name": f"j{i}"}) for i in range(3)]
        )
        assert common_state(task) == (3, [("a", 2)])
        assert outcomes_per_query(task) == {"applied": 3, "duplicate": 3, "conflicting": 3}
        assert {reason for _, _, reason in task.reasons} == {"conflicting"}


def test_an_applied_judgment_without_an_id_is_recognised_by_its_bytes(read_batches):
    new = [({"a": i}, {"at": i}) for i in range(3)]
    for grouping in all_groupings(*new):
        task = read_batches(*grouping, new, [({"a": 2}, {"at": 9, "name": "j"})])
        assert common_state(task) == (4, [("a", 2)])
        assert outcomes_per_query(task) == {"applied": 4, "duplicate": 3}


def test_a_single_judgment_without_an_id_is_recognised(read_batches):
    task = read_batches([({"a": 1}, {"at": 1})], [({"a": 1}, {"at": 2})])
    assert outcomes_per_query(task) == {"applied": 1, "duplicate": 1}


def test_judgments_without_an_id_and_with_other_bytes_do_not_match(read_batches):
    task = read_batches([({"a": 1}, {"at": 1, "name": "j"})], [({"b": 1}, {"at": 2})])
    task.judge(
        *for_all_queries([({"b": 1}, {"at": 3, "name": "j"})], task.count("queries", "started"))
    )
    assert outcomes_per_query(task) == {"applied": 2, "conflicting": 1}


def test_the_first_judgment_of_an_id_in_a_batch_is_applied_on_the_slow_path_too(read_batches):
    odd, ordinary = ({"b": None}, {"at": 2, "name": "j"}), ({"b": 1}, {"at": 2, "name": "j"})
    task = read_batches([({"b": 2, "c": 1}, {"at": 1})], [odd, ordinary])
    assert common_state(task) == (2, [("c", 1)])
    assert outcomes_per_query(task) == {"applied": 2, "conflicting": 1}


def test_judgments_after_a_slow_path_judgment_are_applied_in_order():
    task = Task("mrr")
    task.rank(*(ranking("a b", trace=f"t{i}") for i in range(CROWD)))
    first = {True: {"b": None, "a": 1}, False: {"b": 3}}
    task.judge(
        *(judgment(first[i % 2 == 0], at=1, trace=f"t{i}", name="j") for i in range(CROWD)),
        *for_all_queries(
            [({"b": 1}, {"at": 1, "name": "j"}), ({"b": 2}, {"at": 0, "name": "k"})], CROWD
        ),
    )
    assert last_states(task) == [
        (2, [("a", 1)] if int(trace[1:]) % 2 == 0 else [("b", 3)])
        for trace in sorted(f"t{i}" for i in range(CROWD))
    ]
    assert outcomes_per_query(task) == {"applied": 2, "conflicting": 1}


def test_a_duplicate_between_two_new_ones_changes_nothing(read_batches):
    again = ({"a": 1}, {"at": 1, "name": "j"})
    new = [({"b": 2}, {"at": 2}), again, ({"c": 3}, {"at": 3})]
    assert common_state(read_batches([again], new)) == (3, [("a", 1), ("b", 2), ("c", 3)])


def test_a_withdrawal_at_any_position_and_later_judgments(read_batches):
    before = [({"a": 1, "b": 1}, {"at": 1}), ({"b": 2, "c": 1}, {"at": 2})]
    for grouping in all_groupings(
        *before, ({"a": None, "b": None}, {"at": 3}), ({"b": 3}, {"at": 2})
    ):
        task = read_batches(*grouping, [({"a": 4}, {"at": 4})])
        assert common_state(task) == (5, [("a", 4), ("c", 1)])
        assert outcomes_per_query(task) == {"applied": 5}


def test_all_of_many_applied_judgments_are_recognised(read_batches):
    many = [({"a": i, f"c{i}": 1}, {"at": i, "name": f"j{i}"}) for i in range(80)]
    task = read_batches(many[:2], *([one] for one in many[2:70]), many[70:], many)
    revision, grades = common_state(task)
    assert revision == 80
    assert grades == [("a", 79), *((f"c{i}", 1) for i in range(80))]
    assert outcomes_per_query(task) == {"applied": 80, "duplicate": 80}


@pytest.mark.parametrize(
    ("ages", "settled"),
    [
        ((50, 100), {"a": 1, "b": 1}),
        ((50, 101), {"a": 0}),
        ((101, 102), {}),
        ((50, 100, 101, 102), {"a": 1, "b": 1}),
    ],
)
def test_settled_grades_end_at_maturity_and_running_grades_have_all_judgments(
    read_batches, ages, settled
):
    """Judgment i, from 0, gives i to a, and 1 to b after the first one."""
    judgments = [({"a": i} | ({"b": 1} if i else {}), {"at": at}) for i, at in enumerate(ages)]
    for grouping in all_groupings(*judgments):
        task = read_batches(*grouping)
        task.beat(900)
        assert [one.grades for one in task.settled] == [settled] * len(task.settled)
        assert common_state(task) == (len(ages), [("a", len(ages) - 1), ("b", 1)])


def test_a_judgment_in_time_read_after_one_past_maturity_settles(read_batches):
    task = read_batches(
        [({"a": 1}, {"at": 90})],
        [({"a": 2, "b": 1}, {"at": 105})],
        [({"c": 1}, {"at": 95})],
        [({"d": 1}, {"at": 106})],
        out_of_orderness_ms=30,
    )
    task.beat(900)
    assert {tuple(one.grades.items()) for one in task.settled} == {(("a", 1), ("c", 1))}
    assert common_state(task) == (4, [("a", 2), ("b", 1), ("c", 1), ("d", 1)])


def test_judgments_after_settling_change_only_the_running_grades(read_batches):
    task = read_batches([({"a": 1}, {"at": 50})])
    n = task.count("queries", "started")
    task.beat(200)
    for at in (300, 301):
        task.judge(*for_all_queries([({"a": 0, "b": at}, {"at": at})], n))
    task.judge(*for_all_queries([({"b": None}, {"at": 302}), ({"d": 1}, {"at": 302})], n))
    task.beat(5_000)
    assert [one.grades for one in task.settled] == [{"a": 1}] * n
    assert common_state(task) == (5, [("a", 0), ("d", 1)])
    assert task.total("running") == (n, n / 4)
    assert task.total("settled") == (n, float(n))


@pytest.mark.parametrize("n", [1, CROWD])
def test_early_judgments_are_applied_before_those_of_the_batch(n):
    early = for_all_queries([({"a": 1}, {"at": 5}), ({"b": 1}, {"at": 5})], n)
    for n_waiting in (n, 2 * n):
        task = Task("mrr")
        task.judge(*early[:n_waiting])
        task.read(
            [ranking("a b c d", trace=f"t{i}") for i in range(n)],
            [*early[n_waiting:], *for_all_queries([({"a": 2, "c": 1}, {"at": 5})], n)],
        )
        task.judge(*for_all_queries([({"c": 2}, {"at": 6}), ({"a": 1}, {"at": 5})], n))
        assert common_state(task) == (4, [("a", 2), ("b", 1), ("c", 2)])
        assert outcomes_per_query(task) == {"applied": 4, "duplicate": 1}


def test_one_batch_may_hold_first_and_further_judgments():
    task = Task("mrr")
    task.rank(*(ranking("a b", trace=f"t{i}") for i in range(CROWD)))
    task.judge(*for_all_queries([({"a": 1, "b": 1}, {"at": 1})], CROWD // 2))
    task.judge(*for_all_queries([({"b": 2}, {"at": 2})], CROWD))
    found = {trace: list(task.last(trace).grades.items()) for trace in ("t0", f"t{CROWD - 1}")}
    assert found == {"t0": [("a", 1), ("b", 2)], f"t{CROWD - 1}": [("b", 2)]}
    assert [task.last(trace).revision for trace in found] == [2, 1]


def test_a_query_in_a_reused_row_has_no_judgments_of_the_former_query():
    task = Task("mrr")
    for start in (0, 5_000):
        task.rank(*(ranking("a b", trace=f"t{i}", at=start) for i in range(CROWD)))
        for name, at in (("j", start + 1), ("k", start + 150)):
            task.judge(*for_all_queries([({name: 1}, {"at": at, "name": name})], CROWD))
        assert last_states(task) == [(2, [("j", 1), ("k", 1)])] * CROWD
        task.read([heartbeat(at=start + 4_000)], [heartbeat(at=start + 4_000)])
    assert [one.grades for one in task.settled] == [{"j": 1}] * 2 * CROWD
    assert task.counts("judgments") == {"applied": 4 * CROWD, "heartbeat": 2}

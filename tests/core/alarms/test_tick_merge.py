"""The tasks that block the sums of ticks, and the order in which ticks begin series."""

from collections import Counter

from evaluator.core.alarms.ticks import TICK_MS
from evaluator.core.online.tick_merge import TickMerge
from evaluator.core.online.watched_queries import TickSums, WatchedQueries
from evaluator.core.types.records import WatermarkRecord
from evaluator.wire.outputs.settled import watched_of
from tests.core.alarms.settled import RULES, settled_world


def added(merge, task, queries):
    """Adds queries with their places as the numbers of a task."""
    queries = [each._replace(task=task, n=n) for n, each in enumerate(queries)]
    for part in watched_of(queries, range(len(queries)), RULES.columns()):
        assert merge.add(task, part) is None


def test_a_task_behind_the_others_is_awaited():
    queries = settled_world(1, per_hour=8, hours=3)
    merge = TickMerge(3, {}, RULES)
    assert merge.awaited == []
    for task, n in enumerate((1, len(queries), 2)):
        added(merge, task, queries[:n])
    list(merge.take())
    assert merge.n_buffered == len(queries)
    assert merge.awaited == [0]
    merge.watermark(0, WatermarkRecord(queries[-1].settled_time_ms + 1, 1))
    list(merge.take())
    assert merge.awaited == [2]
    merge.watermark(2, WatermarkRecord(queries[-1].settled_time_ms + 1, 2))
    list(merge.take())
    assert (merge.n_buffered, merge.awaited) == (0, [])


def test_the_place_of_a_tick_is_that_of_its_first_query_with_a_value():
    queries = settled_world(1, per_hour=60, hours=2)
    sums = TickSums(RULES)
    sums.add(WatchedQueries.of_settled(queries, RULES.columns()))
    found = {(tick_ms, labels[2]): place for tick_ms, place, labels, _ in sums.pop()}
    expected = {}
    for query in queries:
        tick_ms = query.event_time_ms - query.event_time_ms % TICK_MS
        place = query.settled_time_ms, query.trace_id, query.node_id
        for number, template in enumerate(RULES.templates()):
            is_level = template.level in ("", query.segments["locale"])
            if is_level and (query.units or not template.rankers):
                expected.setdefault((tick_ms, number), place)
    assert found == expected


def test_the_series_of_a_tick_begin_in_the_order_of_their_first_queries():
    """Those of queries with equal places begin in the order of their declaration."""
    query = settled_world(1, per_hour=1, hours=1)[0]._replace(grades={"a": 1.0}, variant="prod")
    units = {ranker: {"ndcg@10": 1} for ranker in ("served", "bm25")}
    merge = TickMerge(3, {}, RULES)
    for task, after_ms in ((0, 2), (1, 1), (2, 1)):
        at_ms = query.settled_time_ms + after_ms
        added(merge, task, [query._replace(settled_time_ms=at_ms, model=f"m{task}", units=units)])
        merge.watermark(task, WatermarkRecord(query.settled_time_ms + 10**8, 1))
    order = [(labels[0], labels[2]) for _, labels, _ in merge.take()]
    numbers = sorted({number for _, number in order})
    expected = [(model, number) for number in numbers for model in ("m1", "m2")]
    assert order == [*expected, *(("m0", number) for number in numbers)]


def test_sums_keep_no_array_of_other_levels():
    queries = settled_world(1, per_hour=60, hours=2)
    sums = TickSums(RULES)
    sums.add(WatchedQueries.of_settled(queries, RULES.columns()))
    kept = {}  # entries of the arrays that the sums of each template refer to
    used = Counter()
    for _, _, labels, of_tick in sums.pop():
        for units, _, _ in of_tick._parts:
            array = units if units.base is None else units.base
            kept.setdefault(labels[2], {})[id(array)] = len(array)
            used[labels[2]] += len(units)
    assert {number: sum(sizes.values()) for number, sizes in kept.items()} == used

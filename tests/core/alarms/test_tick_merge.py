"""The tasks that block the sums of ticks."""

from evaluator.core.online.tick_merge import TickMerge
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

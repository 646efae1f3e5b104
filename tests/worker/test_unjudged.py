"""Of which stored queries no judgments are looked for."""

from random import Random

import numpy as np
import pytest

from evaluator.core.join.changes import AppliedRows, Changes, StartedRows
from evaluator.wire.messages.codec import decode_rankings
from evaluator.wire.records import Records
from evaluator.worker import task_state
from evaluator.worker.task_state import Unjudged
from tests.worker.stored import judgment, ranking


@pytest.fixture
def asked(stored, monkeypatch):
    """How many judgments are looked for."""
    counts = []
    get = stored.store.get

    def counted(table, keys):
        if table == "judgments":
            counts.append(len(keys))
        return get(table, keys)

    monkeypatch.setattr(stored.store, "get", counted)
    return counts


def test_judgments_are_looked_for_where_there_may_be_some(stored, asked):
    stored.rank(ranking("judged", 0), ranking("not", 0), ranking("at once", 0))
    stored.judge(judgment("at once", 0))
    stored.commit()
    stored.judge(judgment("not", 1))
    assert not asked
    stored.judge(judgment("at once", 1, b=1))
    assert asked == [1, 1], "one, and one behind it"
    stored.commit()
    stored.judge(judgment("not", 1))
    stored.judge(judgment("at once", 1, b=1))
    assert stored.count("judgments", "duplicate") == 2
    stored.judge(judgment("judged", 1))
    assert stored.count("judgments", "applied") == 4


def test_a_judgment_that_is_applied_by_itself_is_looked_for(stored):
    stored.rank(ranking("t", 0))
    stored.commit()
    withdrawn = judgment("t", 1, a=None)
    stored.judge(withdrawn)
    stored.commit()
    stored.judge(withdrawn)
    assert stored.count("judgments", "duplicate") == 1


def test_nothing_is_known_of_what_another_process_stored(stored, asked):
    stored.rank(ranking("t", 0))
    stored.commit()
    stored.restart()
    stored.judge(judgment("t", 1))
    assert asked == [1]
    stored.commit()
    stored.judge(judgment("t", 1))
    assert stored.count("judgments", "duplicate") == 1


NONE = decode_rankings(Records.of("rankings", 0, [], [], [], [], 0), max_future_skew_ms=0)


def changes(started=(), judged=(), released_before=0):
    offsets = np.array(started, np.int64)
    zeros, queries = np.zeros(len(offsets), np.int64), np.array(judged, np.int64)
    numbers = np.zeros(len(queries), np.int64)
    return Changes(
        started=[StartedRows(offsets, zeros, np.zeros(len(offsets), "V16"), [], NONE, offsets)],
        applied=[AppliedRows(queries, numbers, numbers, numbers, numbers, [])],
        released_before=released_before,
    )


def test_what_is_sure_is_so(monkeypatch):
    """And of what came a moment ago it is sure."""
    monkeypatch.setattr(task_state, "_MAX_FLAGS", 4_000)
    monkeypatch.setattr(task_state, "_MIN_FLAGS", 16)
    random, known = Random(1), Unjudged()
    stored, judged, end, first = set(), set(), 10**12, 0
    for _ in range(300):
        started = sorted(random.sample(range(end, end + 100), random.randint(0, 30)))
        end += 100
        stored |= set(started)
        now = set(random.sample(sorted(stored), min(len(stored), 10)))
        judged |= now
        first = max(first, end - random.choice([1_500, 10_000]))
        known.update(changes(started, sorted(now), first))
        asked = np.array(sorted(stored | {1, 10**13}))
        sure = set(asked[known.among(asked)].tolist())
        assert sure <= stored - judged
        assert {at for at in stored - judged if at >= end - 1_000} <= sure


def test_it_takes_room_for_what_is_held_and_no_more():
    known = Unjudged()
    for first in range(0, 1_000_000, 10_000):
        known.update(changes(range(first, first + 10_000), (), max(0, first - 20_000)))
    assert known._flags.nbytes < 100_000

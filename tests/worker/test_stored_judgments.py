"""The places of the judgments of stored queries."""

from random import Random

import numpy as np
import pytest

from evaluator.worker.stored_judgments import LatestRows
from tests.worker.stored import judgment, ranking


@pytest.fixture
def lookups(stored, monkeypatch):
    """How many judgments are looked for."""
    counts = []
    get = stored.store.get

    def counted(table, keys):
        if table == "judgments":
            counts.append(len(keys))
        return get(table, keys)

    monkeypatch.setattr(stored.store, "get", counted)
    return counts


def test_judgments_are_looked_up_only_for_judged_queries(stored, lookups):
    stored.rank(ranking("judged", 0), ranking("not", 0), ranking("at once", 0))
    stored.judge(judgment("at once", 0))
    stored.commit()
    stored.judge(judgment("not", 1))
    assert not lookups
    stored.judge(judgment("at once", 1, b=1))
    assert lookups == [1]
    stored.commit()
    stored.judge(judgment("not", 1))
    assert lookups == [1, 1]
    stored.judge(judgment("at once", 1, b=1))
    assert lookups == [1, 1, 1, 1], "one row of each commit"
    assert stored.count("judgments", "duplicate") == 2
    stored.judge(judgment("judged", 1))
    assert stored.count("judgments", "applied") == 4


def test_a_judgment_applied_on_the_slow_path_is_looked_up(stored):
    stored.rank(ranking("t", 0))
    stored.commit()
    withdrawn = judgment("t", 1, a=None)
    stored.judge(withdrawn)
    stored.commit()
    stored.judge(withdrawn)
    assert stored.count("judgments", "duplicate") == 1


def test_judgments_are_found_after_a_restart(stored, lookups):
    stored.rank(ranking("t", 0), ranking("u", 0))
    stored.judge(judgment("t", 1))
    stored.commit()
    stored.judge(judgment("t", 1, b=1))
    stored.commit()
    lookups.clear()
    stored.restart()
    stored.judge(judgment("t", 1), judgment("t", 1, b=1), judgment("u", 1))
    assert lookups == [1, 1]
    assert stored.count("judgments", "duplicate") == 2
    assert stored.count("judgments", "applied") == 3


def test_a_query_may_have_more_judgments_than_a_row(stored):
    stored.rank(ranking("t", 0), ranking("u", 0))
    many = [judgment(trace, 1, b=grade) for grade in range(20) for trace in "tu"]
    stored.judge(*many)
    stored.commit()
    stored.restart()
    stored.judge(*many)
    assert stored.count("judgments", "duplicate") == 40


def test_rows_without_a_judgment_of_an_open_query_are_deleted(stored):
    def rows():
        return [[key for key, _ in stored.store.rows(table)] for table in ("judged", "judgments")]

    for at in (0, 5, 20, 40):
        stored.rank(ranking(f"t{at}", at))
        stored.judge(judgment(f"t{at}", at))
        stored.commit()
    judged, judgments = rows()
    assert judged == judgments == [(3).to_bytes(8, "big")], "numbers are not used again"
    stored.restart()
    stored.judge(judgment("t40", 41, b=1))
    stored.commit()
    assert rows()[0] == [(at).to_bytes(8, "big") for at in (3, 4)]


@pytest.mark.slow(alone=False)
def test_the_latest_row_of_every_query_is_found():
    random, latest, known = Random(1), LatestRows(), {}
    first, row = 10**12, 2**32 - 40
    for _ in range(300):
        queries = [first + random.randrange(200_000) for _ in range(random.randint(1, 30))]
        rows = sorted(random.randint(row, row + 3) for _ in queries)
        row += 3
        latest.set(np.array(queries), np.array(rows))
        known |= dict(zip(queries, rows, strict=True))
        others = [1, 10**13, *queries]
        lookups = random.sample(sorted(known), min(len(known), 50)) + others
        assert latest.of(np.array(lookups)).tolist() == [known.get(at, -1) for at in lookups]
    latest.drop_before(first + 150_000)
    assert latest.n_bytes <= 2 * 4 * 65_536

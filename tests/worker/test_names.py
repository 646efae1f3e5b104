"""The queries of the keys of a stored task, and their places."""

import numpy as np
import pytest

from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.core.columns.key_hashes import key_of
from evaluator.core.join.changes import KEY_VERSION, NO_VERSIONS, Changes
from evaluator.wire.messages.codec import decode_rankings
from evaluator.wire.records import Records
from evaluator.wire.state import task_rows as wire
from evaluator.worker.key_versions import KeyVersions
from tests.wire.messages import started_rows
from tests.worker.stored import judgment, ranking

RANKING = b'{"schema_version":1,"trace_id":"t","node_id":"n","candidate_ids":["a"],"scores":[1]}'


def rows_apart(stored):
    return {name for name, _ in stored.state._store.rows("names")}


def test_a_key_with_one_ranking_has_no_row(stored):
    stored.rank(ranking("t", 0))
    stored.commit()
    assert rows_apart(stored) == set()
    for _ in range(2):
        stored.judge(judgment("t", 1), judgment("other", 1))
        stored.restart()
    stored.judge(judgment("t", 1))
    assert stored.count("judgments", "applied") == 1


def test_a_key_with_a_repeated_ranking_has_a_row_until_its_release(stored):
    stored.rank(ranking("t", 0), ranking("once", 0))
    stored.commit()
    stored.rank(ranking("t", 1))
    stored.commit()
    assert rows_apart(stored) == {key_of("t", "n")}
    stored.restart()
    stored.rank(ranking("t", 1))
    assert stored.count("rankings", "conflicting") == 1
    assert stored.count("rankings", "duplicate") == 1
    stored.rank(ranking("later", 30))
    stored.judge(judgment("later", 30))
    stored.commit()
    assert rows_apart(stored) == set()


def test_a_ranking_that_conflicts_at_the_same_time_is_remembered(stored):
    """Only the hash of the latest ranking of the key has changed."""
    stored.rank(ranking("t", 0))
    stored.commit()
    stored.rank(ranking("t", 0, scores=[1, 2]))
    stored.commit()
    stored.restart()
    stored.rank(ranking("t", 0, scores=[1, 2]))
    assert stored.count("rankings", "conflicting") == 1
    assert stored.count("rankings", "duplicate") == 1


def test_a_released_key_has_no_row(stored):
    stored.rank(ranking("t", 0), ranking("t", 0, scores=[1, 2]), ranking("u", 0))
    stored.commit()
    assert rows_apart(stored) == {key_of("t", "n")}
    stored.rank(ranking("later", 30))
    stored.judge(judgment("later", 30))  # releases both, on disk
    stored.rank(ranking("t", 31), ranking("u", 31))
    stored.commit()
    assert rows_apart(stored) == set()
    stored.restart()
    stored.judge(judgment("t", 31), judgment("u", 31))
    assert stored.count("judgments", "applied") == 3


def test_a_key_released_and_started_in_one_commit_has_its_new_query():
    """`Changes.versions` has released queries, `single_keys` started ones."""
    store = MemoryStateStore()
    versions = KeyVersions(store, features=False)
    rankings = decode_rankings(
        Records.of("rankings", 0, [7], [None], [RANKING], [5], 8), max_future_skew_ms=0
    )
    single = np.array([(7, 5, 5, rankings.hashes[0].tobytes())], KEY_VERSION)
    changes = Changes(
        started=[started_rows(rankings)],
        single_keys=rankings.key_hashes,
        single_versions=single,
        versions={key_of("t", "n"): NO_VERSIONS},
    )
    batch = store.batch()
    versions.write(batch, changes)
    batch.write()
    assert versions.versions([key_of("t", "n")]).queries["offset"].tolist() == [7]


def test_rankings_are_taken_from_the_rows_of_the_last_lookup(monkeypatch):
    """Expired queries of a lookup are not asked for."""
    store = MemoryStateStore()
    versions = KeyVersions(store, features=False)
    texts = [RANKING.replace(b'"t"', b'"t%d"' % at) for at in range(3)]
    rankings = decode_rankings(
        Records.of("rankings", 0, [4, 6, 7], [None] * 3, texts, [5] * 3, 8), max_future_skew_ms=0
    )
    single = np.zeros(3, KEY_VERSION)
    single["offset"], single["hash"] = rankings.offsets, rankings.hashes
    single["event_ms"] = single["named_ms"] = 5
    started = started_rows(rankings)
    changes = Changes(started=[started], single_keys=rankings.key_hashes, single_versions=single)
    versions.write(batch := store.batch(), changes)
    batch.write()
    found = versions.versions(rankings.key_hashes.tolist())
    assert found.queries.tolist() == single.tolist()
    reads, get = [], store.get
    monkeypatch.setattr(store, "get", lambda *names: reads.append(names) or get(*names))
    assert versions.rankings(np.array([4, 7])).trace_ids == ["t0", "t2"]
    assert reads == []
    assert versions.rankings(np.array([6])).trace_ids == ["t1"]
    assert len(reads) == 1


def test_the_next_lookup_releases_the_rows_of_the_last_one(stored):
    stored.rank(ranking("t", 0))
    stored.commit()
    versions = stored.state._key_versions
    versions.versions([key_of("t", "n")])
    assert versions._read is not None
    versions.versions([key_of("other", "n")])
    assert versions._read is None


def test_a_missing_run_is_damage(stored):
    stored.rank(ranking("t", 0), ranking("u", 1))
    stored.commit()
    batch = stored.state._store.batch()
    batch.delete_range("entries", b"", wire.BEHIND_ALL)
    batch.write()
    with pytest.raises(wire.StateDamaged, match="run 0 is missing"):
        stored.restart()

"""A task with a store: queries are evicted at every commit, and loaded when needed."""

from tests.worker.stored import judgment, ranking


def test_a_key_released_in_memory_is_not_found_in_the_store_again(stored):
    stored.rank(ranking("free", 0), ranking("other", 12))
    stored.commit()
    stored.judge(judgment("free", 1))  # loaded again, and its key is released
    stored.judge(judgment("later", 11))
    stored.rank(ranking("free", 13))  # before the store is written
    stored.judge(judgment("other", 14))
    assert stored.count("judgments", "applied") == 2
    assert stored.engine.head.n_keys == 2, "free, reused, and other"


def test_a_query_loaded_to_settle_and_evicted_again_is_still_found_by_its_key(stored):
    """Its key has lost an older query since the last commit."""
    stored.rank(ranking("named", 0), ranking("named", 11), ranking("other", 40))
    stored.judge(judgment("later", 8))  # the first query of the key settles
    stored.commit()
    stored.restart()
    stored.judge(judgment("later", 12))  # and is released, in the store
    stored.judge(judgment("later", 18))  # the second one settles, and is evicted at once
    assert stored.count("queries", "settled") == 2
    stored.commit()
    stored.judge(judgment("named", 20))
    assert stored.count("judgments", "applied") == 1


def test_a_start_deletes_rows_that_are_never_read_again(stored, monkeypatch):
    """A process may end before it has written enough to delete anything."""
    stored.rank(ranking("free", 0))
    stored.commit()
    stored.rank(ranking("taken", 12))
    stored.judge(judgment("later", 12))
    with monkeypatch.context() as patch:
        patch.setattr(stored.store, "discard_before", lambda table, end: None)
        stored.commit()
    n_before = len(list(stored.store.rows("queries")))
    stored.restart()
    assert (n_before, len(list(stored.store.rows("queries")))) == (2, 1)
    stored.judge(judgment("taken", 13))
    assert stored.count("judgments", "applied") == 1

"""Places by hash: the sorted runs equal a dict; their memory and number."""

import numpy as np
import pytest

from evaluator.core.store import key_index
from evaluator.core.store.key_index import KeyIndex
from tests.repeats import sized


@pytest.fixture
def index():
    return KeyIndex()


def hashes(*pairs):
    return np.array(pairs, np.uint64).reshape(-1, 2)


def test_only_hashes_with_a_place_are_found(index):
    assert index.put(hashes((1, 5), (2, 5), (3, 0)), np.array([7, -1, 9])).tolist() == [0, 0, 0]
    assert index.find(hashes((2, 5), (2, 6), (1, 5), (9, 9), (3, 0))).tolist() == [-1, 0, 7, 0, 9]


def test_the_last_place_of_equal_hashes_counts(index):
    index.put(hashes((1, 1), (1, 1)), np.array([7, 8]))
    assert index.put(hashes((2, 1), (1, 1)), np.array([5, 6])).tolist() == [0, 8]
    assert index.find(hashes((1, 1), (2, 1))).tolist() == [6, 5]


def test_hashes_with_equal_first_halves_are_distinguished(index):
    index.put(hashes((1, 1), (1, 3), (1, 2), (2, 0)), np.array([1, 3, 2, 4]))
    assert index.find(hashes((1, 2), (1, 3), (1, 4), (1, 1))).tolist() == [2, 3, 0, 1]


def test_a_hash_can_be_removed_twice(index):
    nothing = np.array([0])
    assert index.put(hashes((1, 1)), nothing).tolist() == [0]
    index.put(hashes((1, 1)), np.array([1]))
    assert index.put(hashes((1, 1)), nothing).tolist() == [1]
    assert index.put(hashes((1, 1)), nothing).tolist() == [0]
    assert index.find(hashes((1, 1))).tolist() == [0]
    assert index.n_bytes == 0


def test_putting_no_hashes_is_allowed(index):
    assert index.put(hashes(), np.empty(0, np.int64)).tolist() == []
    assert index.find(hashes()).tolist() == []


@pytest.mark.parametrize("n_halves", [3, 40, 1 << 62], ids=["mostly equal", "often", "never"])
def test_index_equals_a_dict(index, monkeypatch, n_halves):
    monkeypatch.setattr(key_index, "_MAX_ENTRIES", 700)
    rng, expected = np.random.default_rng(7), {}
    pool = np.stack([rng.integers(0, n_halves, 1_500), np.arange(1_500)], axis=1).astype(np.uint64)
    for _ in range(sized(60, quick=15)):
        chosen = rng.choice(1_500, rng.integers(0, 300))
        places = rng.integers(-1, 100, len(chosen)) * (rng.random() < 0.55)
        index.put(pool[chosen], places)
        expected.update(zip(chosen.tolist(), places.tolist(), strict=True))
        assert index.find(pool).tolist() == [expected.get(each, 0) for each in range(1_500)]


def test_a_large_run_is_not_merged_with_a_small_one_before_it(index):
    for first, n in ((0, 1), (1, 4)):
        index.put(hashes(*((0, first + i) for i in range(n))), np.ones(n, np.int64))
    assert [len(run) for run in index._runs] == [4, 1]


def test_index_takes_24_bytes_per_hash_in_few_runs_and_frees_them():
    index, n = KeyIndex(), sized(400_000, quick=100_000)
    many = np.random.default_rng(1).integers(0, 1 << 64, (n, 2), np.uint64, endpoint=False)
    for first in range(0, n, 5_000):
        index.put(many[first : first + 5_000], np.arange(first + 1, first + 5_001))
    assert index.n_bytes == 24 * n
    assert len(index._runs) <= 4  # each has four times the entries of the next: 5,000 * 4^4 > n
    index.put(many[: n * 3 // 4], np.zeros(n * 3 // 4, np.int64))
    assert index.n_bytes <= 2 * 24 * n // 4
    index.put(many, np.zeros(n, np.int64))
    assert index.n_bytes == 0

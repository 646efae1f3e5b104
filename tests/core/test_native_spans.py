"""What is done with spans of pools by the compiled part and by numpy: the same to the last bit."""

import numpy as np
import pytest

from evaluator.core.columns.table import SlotTable
from evaluator.core.join.judgments import GradeCodes, JudgedCandidates, JudgmentHeads
from evaluator.core.measures import NEVER_RANKED
from evaluator.core.measures.align import QuerySpans, RankedPools, judged_lists
from evaluator.core.native import library
from evaluator.core.native.lists import MOST_COLUMNS
from evaluator.core.native.structs import address
from tests.core.test_native_lists import FIELDS, bits

SLOT_COLUMNS = ("judged_start", "n_judged", "applied_start", "n_applied")


@pytest.fixture
def without(monkeypatch):
    """Does something as if there were no compiled part."""

    def done(what):
        with monkeypatch.context() as patch:
            patch.setattr(library, "BUILT", None)
            return what()

    return done


def starts_of(counts):
    return np.cumsum(counts) - counts


def some_world(rng, *, widest):
    """Spans of queries with up to *widest* judged candidates, and their pools."""
    n = int(rng.integers(1, 40))
    n_candidates = rng.integers(0, 30, n)
    n_rankers, n_judged = rng.integers(0, 4, n), rng.integers(1, widest + 1, n)
    codes = [rng.integers(0, 40, size) for size in n_candidates.tolist()]  # repeated ones, too
    judged = [rng.choice(200, size, replace=False) for size in n_judged.tolist()]
    ranks = [
        np.concatenate([rng.permutation(size) + 1 for _ in range(rankers)] or [[]])
        for size, rankers in zip(n_candidates.tolist(), n_rankers.tolist(), strict=True)
    ]
    total = int(n_judged.sum())
    grades = rng.choice([rng.integers(0, 5, total) * 1.0, rng.random(total), np.full(total, -0.0)])
    lengths = n_candidates * n_rankers
    spans = QuerySpans(
        *(starts_of(n_candidates), n_candidates, starts_of(lengths), n_rankers),
        *(starts_of(n_judged), n_judged, n_candidates + 5, np.zeros(n, np.int64)),
    )
    pools = RankedPools(np.concatenate(codes).astype(np.int32), np.hstack(ranks).astype(np.uint16))
    return spans, pools, np.concatenate(judged).astype(np.int32), grades


def by_query(parts):
    """Every list without its padding, by its query and its place among the lists of that."""
    found = {}
    for queries, lists in parts:
        for place, here in enumerate(lists.query_of.tolist()):
            n_before = lists.query_of[:place].tolist().count(here)
            found[int(queries[here]), n_before] = {
                "ranks": lists.ranks[place].tolist(),
                "grades": bits(lists.grades[place]).tolist(),
                "columns": lists.columns[place].tolist(),
                "n_ranked": int(lists.n_ranked[place]),
                "judged_grades": bits(lists.judged_grades[here]).tolist(),
                "ideal_grades": bits(lists.ideal_grades[here]).tolist(),
                "n_relevant": int(lists.n_relevant[here]),
            }
    return found


def padded_alike(found, width):
    """As if all lists had been padded to the same width."""
    padding = {"ranks": NEVER_RANKED, "columns": None}
    for lists in found.values():
        for name in ("ranks", "grades", "columns", "judged_grades", "ideal_grades"):
            lists[name] += [padding.get(name, 0)] * (width - len(lists[name]))
        columns = enumerate(lists["columns"])
        lists["columns"] = [place if one is None else one for place, one in columns]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_held_queries_become_the_lists_of_numpy(without, seed):
    rng = np.random.default_rng([20261124, seed])
    widest = int(rng.choice([3, 8, 20, MOST_COLUMNS, MOST_COLUMNS + 30]))
    world = some_world(rng, widest=widest)
    found = padded_alike(by_query(judged_lists(*world)), 200)
    assert found == padded_alike(without(lambda: by_query(judged_lists(*world))), 200)
    assert len(found) == world[0].n_rankers.sum()


def test_all_fields_have_the_types_of_numpy(without):
    world = some_world(np.random.default_rng(20261125), widest=8)
    [(_, found)] = judged_lists(*world)
    for _, expected in without(lambda: list(judged_lists(*world))):
        for field in FIELDS:
            assert getattr(found, field).dtype == getattr(expected, field).dtype, field


def some_judgments(rng, n_queries, offset):
    """One judgment of some of the queries; times collide, ids and hashes are their own."""
    chosen = np.flatnonzero(rng.random(n_queries) < 0.7)
    counts = rng.integers(0, 6, len(chosen))
    codes = [rng.choice(12, size, replace=False) for size in counts.tolist()]
    given = GradeCodes(
        counts,
        np.concatenate([np.empty(0, np.int32), *codes]).astype(np.int32),
        rng.integers(0, 5, int(counts.sum())) * 1.0,
    )
    ids = [None if rng.random() < 0.8 else f"j{offset}-{slot}" for slot in chosen.tolist()]
    heads = JudgmentHeads(
        np.array([*ids, None], object)[:-1],
        np.frombuffer(rng.bytes(16 * len(chosen)), "V16"),
        rng.integers(0, 3, len(chosen)),
        rng.permutation(len(chosen)) + offset,
    )
    return chosen, given, heads


def merged_one_after_the_other(seed, *, with_ids):
    """What stands of each query after each judgment, and whether the judgments are known then."""
    rng = np.random.default_rng([20261126, seed])
    slots = SlotTable(dict.fromkeys(SLOT_COLUMNS, np.int64))
    n_queries = int(rng.integers(1, 30))
    every = slots.allocate(n_queries)
    for column in SLOT_COLUMNS:
        slots[column][every] = 0
    judged, said = JudgedCandidates(slots), []
    for turn in range(6):
        chosen, given, heads = some_judgments(rng, n_queries, 1000 - 100 * turn)
        if not with_ids:
            heads = heads._replace(ids=np.full(len(chosen), None))
        said.append(judged.seen(chosen, heads).tolist())
        judged.merge(chosen, given, heads)
        said.append(judged.seen(chosen, heads).tolist())
        for slot in every.tolist():
            first = int(slots["judged_start"][slot])
            span = slice(first, first + int(slots["n_judged"][slot]))
            candidates = (
                judged.candidates[name][span].tolist() for name in ("code", "grade", "by")
            )
            said.append((*candidates, judged.heads_at(slot)))
    return said


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_further_judgments_are_merged_as_by_numpy(without, seed, with_ids):
    found = merged_one_after_the_other(seed, with_ids=with_ids)
    assert found == without(lambda: merged_one_after_the_other(seed, with_ids=with_ids))
    assert any(True in one for one in found if isinstance(one, list))


def test_arrays_that_lie_apart_are_refused():
    with pytest.raises(ValueError, match="must lie together"):
        address(np.arange(10)[::2])
    read_only = np.frombuffer(b"12345678", np.int64)
    assert address(read_only) == read_only.ctypes.data
    assert address(np.empty(0)) >= 0

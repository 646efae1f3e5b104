"""Judged lists and merged judgments from spans of pools equal those of Python, list by list."""

import numpy as np
import pytest

from evaluator.core.columns.table import RowTable
from evaluator.core.join.judgments import NO_ID, GradeCodes, JudgedCandidates, JudgmentHeads
from evaluator.core.measures import NEVER_RANKED
from evaluator.core.measures.align import QuerySpans, RankedPools, judged_lists
from tests.core.test_dense import bits

SLOT_COLUMNS = ("judged_start", "n_judged", "applied_start", "n_applied")


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


def span(flat, starts, n, query):
    first = int(starts[query])
    return flat[first : first + int(n[query])].tolist()


def plain_lists(spans, pools, judged_codes, judged_grades):
    """Rank, grade and column of each judged candidate, by query and ranker, in rank order."""
    found = {}
    for query, n_rankers in enumerate(spans.n_rankers.tolist()):
        codes = span(pools.candidate_codes, spans.candidate_starts, spans.n_candidates, query)
        judged = span(judged_codes, spans.judged_starts, spans.n_judged, query)
        grades = span(judged_grades, spans.judged_starts, spans.n_judged, query)
        for ranker in range(n_rankers):
            first = int(spans.rank_starts[query]) + ranker * len(codes)
            ranks = pools.ranks[first : first + len(codes)].tolist()
            found[query, ranker] = sorted(
                (ranks[codes.index(code)] if code in codes else NEVER_RANKED, column, grade)
                for column, (code, grade) in enumerate(zip(judged, grades, strict=True))
            )
    return found


@pytest.mark.parametrize("seed", range(40))
def test_open_queries_become_judged_lists(seed):
    rng = np.random.default_rng([20261124, seed])
    world = some_world(rng, widest=int(rng.choice([3, 8, 20, 94])))
    spans, expected, found = world[0], plain_lists(*world), {}
    for queries, lists in judged_lists(*world):
        for place, here in enumerate(lists.query_of.tolist()):
            query = int(queries[here])
            n = int(spans.n_judged[query])
            columns = zip(
                lists.ranks[place], lists.columns[place], lists.grades[place], strict=True
            )
            cells = list(columns)
            assert all(rank == NEVER_RANKED and not grade for rank, _, grade in cells[n:])
            found[query, lists.query_of.tolist()[:place].count(here)] = cells[:n]
            grades = np.array(span(world[3], spans.judged_starts, spans.n_judged, query))
            assert np.array_equal(bits(lists.judged_grades[here, :n]), bits(grades))
            ideal = np.sort(grades)[::-1] + 0.0
            assert np.array_equal(bits(lists.ideal_grades[here, :n]), bits(ideal))
            assert int(lists.n_relevant[here]) == int((grades > 0).sum())
            assert int(lists.n_ranked[place]) == int(spans.n_ranked[query])
    assert found == expected
    assert len(found) == spans.n_rankers.sum()


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
    ids = [NO_ID if rng.random() < 0.8 else offset + slot for slot in chosen.tolist()]
    heads = JudgmentHeads(
        np.array(ids, np.int64),
        np.frombuffer(rng.bytes(16 * len(chosen)), "V16"),
        rng.integers(0, 3, len(chosen)),
        rng.permutation(len(chosen)) + offset,
    )
    return chosen, given, heads


class PlainMerge:
    """Judgments of queries applied one by one: by candidate the later (timestamp, offset) wins."""

    def __init__(self):
        self.judged, self.heads = {}, {}

    def merge(self, chosen, given, heads):
        ends = np.cumsum(given.counts).tolist()
        for i, slot in enumerate(chosen.tolist()):
            head = tuple(column[i : i + 1].tolist()[0] for column in heads)
            applied = self.heads.setdefault(slot, [])
            judged = self.judged.setdefault(slot, {})
            part = slice(ends[i] - int(given.counts[i]), ends[i])
            new = zip(given.codes[part].tolist(), given.grades[part].tolist(), strict=True)
            for code, grade in new:
                if code not in judged or applied[judged[code][1]][2:] < head[2:]:
                    judged[code] = (grade, len(applied))
            applied.append(head)

    def seen(self, slot, head):
        return any(
            head[0] == id_ and (id_ != NO_ID or head[1] == hash_)
            for id_, hash_, *_ in self.heads.get(slot, [])
        )


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_further_judgments_are_merged_in_columns(seed, with_ids):
    rng = np.random.default_rng([20261126, seed])
    slots = RowTable(dict.fromkeys(SLOT_COLUMNS, np.int64))
    n_queries = int(rng.integers(1, 30))
    every = slots.allocate(n_queries)
    for column in SLOT_COLUMNS:
        slots[column][every] = 0
    merged, plain = JudgedCandidates(slots), PlainMerge()
    for turn in range(6):
        chosen, given, heads = some_judgments(rng, n_queries, 1000 - 100 * turn)
        if not with_ids:
            heads = heads._replace(ids=np.full(len(chosen), NO_ID))
        rows = zip(*(column.tolist() for column in heads), strict=True)
        each = list(zip(chosen.tolist(), rows, strict=True))
        assert merged.seen(chosen, heads).tolist() == [plain.seen(*one) for one in each]
        merged.merge(chosen, given, heads)
        plain.merge(chosen, given, heads)
        assert merged.seen(chosen, heads).all()
        for slot in every.tolist():
            candidates = [
                span(merged.candidates[name], slots["judged_start"], slots["n_judged"], slot)
                for name in ("code", "grade", "by")
            ]
            expected = [(code, *of) for code, of in plain.judged.get(slot, {}).items()]
            assert list(zip(*candidates, strict=True)) == expected
            assert merged.heads_at(slot) == plain.heads.get(slot, [])

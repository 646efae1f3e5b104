"""DESIGN section 7 for one query at a time, in plain Python: the order of operations is stated."""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

from tests.oracle.messages import Ranking

ONE = 2**40
"""Units in a value of 1."""

CANONICAL = {"hit@1": "top1", "hit@3": "top3"}
"""Spellings of one measure are one column."""

Grades = Mapping[str, float]


def canonical(spelling: str) -> str:
    """The name that two spellings of one measure share."""
    return CANONICAL.get(spelling, spelling)


def units(value: float) -> int:
    """A value as an integer: round-half-even(value x 2^40). The product is exact."""
    return round(Fraction(value) * ONE)


def square_units(value_units: int) -> int:
    """The square of the quantised value, rounded half to even."""
    return round(Fraction(value_units, ONE) ** 2 * ONE)


@cache
def discount(rank: int) -> float:
    """D(i), the double nearest to 1/log2(i + 1)."""
    with localcontext() as context:
        context.prec = 80
        return float(Decimal(2).ln() / Decimal(rank + 1).ln())


@cache
def gain(grade: float) -> float:
    """The double nearest to 2^grade - 1."""
    exact = Decimal(grade)
    with localcontext() as context:
        lost_digits = 0 if grade == 0 else max(0, -exact.adjusted())
        context.prec = 80 + lost_digits
        return float(Decimal(2) ** exact - 1)


@cache
def order(ranking: Ranking, ranker: str) -> tuple[int, ...]:
    """Indices into the message's candidates, best first, repeated candidates removed.

    Explicit ranks ascending (served only), else score descending; ties by the bytes of the
    candidate id, descending. Of a repeated candidate the best-ranked stays.
    """
    ids = ranking.candidate_ids
    by_id = sorted(range(len(ids)), key=lambda index: ids[index].encode(), reverse=True)
    if ranker == "served" and ranking.ranks is not None:
        ranks = ranking.ranks
        best_first = sorted(by_id, key=lambda index: ranks[index])
    else:
        scores = scores_of(ranking, ranker)
        best_first = sorted(by_id, key=lambda index: scores[index] or 0.0, reverse=True)
    seen: set[str] = set()
    return tuple(i for i in best_first if not (ids[i] in seen or seen.add(ids[i])))  # type: ignore[func-returns-value]


def scores_of(ranking: Ranking, ranker: str) -> Sequence[float | None]:
    """The scores that *ranker* gave, parallel to the message's candidates."""
    return ranking.scores if ranker == "served" else dict(ranking.scorers)[ranker]


@cache
def ranked_ids(ranking: Ranking, ranker: str) -> tuple[str, ...]:
    """Candidate ids at positions 1..n."""
    return tuple(ranking.candidate_ids[index] for index in order(ranking, ranker))


def top_three(ranking: Ranking, ranker: str) -> list[tuple[str, float | None]]:
    """The first three candidates with their scores."""
    scores = scores_of(ranking, ranker)
    best = order(ranking, ranker)[:3]
    return [(ranking.candidate_ids[index], scores[index]) for index in best]


def relevant_ranks(ranked: Sequence[str], grades: Grades) -> list[int]:
    """Ranks of the relevant candidates, ascending; an unjudged one is not relevant."""
    return [i for i, name in enumerate(ranked, start=1) if grades.get(name, 0.0) > 0]


def first_relevant_rank(ranked: Sequence[str], grades: Grades) -> int:
    """1-based, or 0 if no ranked candidate is relevant."""
    return min(relevant_ranks(ranked, grades), default=0)


def n_relevant(grades: Grades) -> int:
    """R: all relevant judged candidates, ranked or not."""
    return sum(1 for grade in grades.values() if grade > 0)


def hit(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    """1 if any relevant candidate stands within the cutoff."""
    return float(any(i <= cutoff for i in relevant_ranks(ranked, grades)))


def reciprocal_rank(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    """1/(best rank of a relevant candidate) within the cutoff, else 0."""
    best = first_relevant_rank(ranked, grades)
    return 1.0 / best if 0 < best <= cutoff else 0.0


def dcg(list_of_grades: Sequence[float], cutoff: int) -> float:
    """Adds gain x D(i) from rank 1 down."""
    total = 0.0
    for i, grade in enumerate(list_of_grades[:cutoff], start=1):
        total = total + gain(grade) * discount(i)
    return total


def ndcg(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    """DCG over the DCG of the best order of all judged candidates, both cut; else 0."""
    ideal = dcg(sorted(grades.values(), reverse=True), cutoff)
    if n_relevant(grades) == 0:
        return 0.0
    return dcg([grades.get(name, 0.0) for name in ranked], cutoff) / ideal


def average_precision(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    """Adds hits/i over the relevant ranks within the cutoff from rank 1 down, divides by R."""
    total = 0.0
    for hits, i in enumerate(relevant_ranks(ranked, grades), start=1):
        if i <= cutoff:
            total = total + hits / i
    return total / n_relevant(grades) if n_relevant(grades) else 0.0


FAMILIES = {"hit": hit, "mrr": reciprocal_rank, "ndcg": ndcg, "map": average_precision}


def value(measure: str, ranked: Sequence[str], grades: Grades) -> float:
    """The value of *measure* for one list and one query's grades."""
    match = re.fullmatch(r"(top|hit|mrr|ndcg|map)(?:@?([0-9]+))?", measure)
    if match is None:
        raise ValueError(f"the oracle does not know the measure {measure!r}")
    family = "hit" if match[1] == "top" else match[1]
    whole_list = len(ranked) + len(grades) + 1
    return FAMILIES[family](ranked, grades, int(match[2]) if match[2] else whole_list)


@cache
def value_units(
    ranking: Ranking, ranker: str, measure: str, grades: tuple[tuple[str, float], ...]
) -> int:
    """What one query adds to a total."""
    return units(value(measure, ranked_ids(ranking, ranker), dict(grades)))

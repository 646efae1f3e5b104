"""docs/measures.md for a single query, in plain Python, with the specified order of operations."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

from tests.oracle.messages import Ranking

ONE = 2**40
"""Units in a value of 1."""

CANONICAL = {"hit@1": "top1", "hit@3": "top3"}
"""Canonical names by spelling; all spellings of a measure share a column."""

MEASURES = (
    "top1", "top3", "hit@1", "hit@2", "hit@3", "mrr", "mrr@2", "ndcg", "ndcg@1", "ndcg@3", "map",
    "map@1", "map@3", "ndcg@10", "map@10", "ndcg_linear", "ndcg_linear@2", "map_min@1",
    "map_min@3", "map_graded@1", "map_graded@3", "map_graded_ceiling@3", "p@1", "p@3", "r@2",
    "r@10", "f1@2", "f1@5", "fbeta[2]@3", "fbeta[0.50]@2", "fbeta[0]@3", "alpha_ndcg@3",
    "alpha_ndcg[0.5]@3", "alpha_ndcg[0.9]@10", "alpha_ndcg[1]@5", "alpha_ndcg[0]@2",
    "subtopic_recall@1", "subtopic_recall@3", "err@1", "err@10", "rbp[0.8]", "rbp[0]", "rbp[0.95]",
    "judged@1", "judged@5", "unjudged@2", "unjudged@5", "rprec", "rprec[rel=2]", "p[rel=2]@3",
    "r[rel=3]@5", "map[rel=2]", "mrr[rel=1.50]", "hit[rel=2]@1", "fbeta[2,rel=2]@3", "f1[rel=1]@2",
)  # fmt: skip
"""Names that worlds choose from."""

Grades = Mapping[str, float]
NAME = re.compile(r"([a-z_]+?1?)(?:\[([0-9.]+)?(?:,?rel=([0-9.]+))?\])?(?:@([0-9]+))?")
"""Family, number, least relevant grade, cutoff."""


@dataclass(frozen=True, slots=True)
class Known:
    """The data of a query beside its ranking, and the relevant settings."""

    grades: tuple[tuple[str, float], ...] = ()
    subtopics: tuple[tuple[str, tuple[str, ...]], ...] = ()
    event_time_ms: int = 0
    judged_only: bool = False
    freshness_half_life_ms: int = 0
    map_graded_max_grade: int = 2
    err_max_grade: int = 4


@cache
def canonical(spelling: str) -> str:
    """The canonical name of all spellings of a measure."""
    match = NAME.fullmatch(spelling)
    if match is None or "[" not in spelling:
        return CANONICAL.get(spelling, spelling)
    inside = [shortest(match[2])] if match[2] else []
    if (match[1], inside) == ("alpha_ndcg", ["0.5"]):
        inside = []
    inside += [f"rel={shortest(match[3])}"] if match[3] else []
    brackets = f"[{','.join(inside)}]" if inside else ""
    return match[1] + brackets + (f"@{match[4]}" if match[4] else "")


def shortest(text: str) -> str:
    """A number in its shortest form."""
    number = Fraction(text)
    return str(int(number)) if number.denominator == 1 else repr(float(number))


def shown(spelling: str) -> list[str]:
    """A name and its companion."""
    family, _, cutoff = spelling.partition("@")
    companions = [f"map_graded_ceiling@{cutoff}"] if family == "map_graded" else []
    companions += ["ips_clipped"] if family == "ips_clicks" else []
    return [spelling, *companions]


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
    """Indices into the candidates of the message, best first, without repeated candidates.

    Explicit ranks ascending (served only), else score descending; ties by the bytes of the
    candidate id, descending. The best-ranked mention of a repeated candidate remains.
    """
    ids = ranking.candidate_ids
    by_id = sorted(range(len(ids)), key=lambda index: ids[index].encode(), reverse=True)
    if ranker == "served" and ranking.ranks is not None:
        ranks = ranking.ranks
        best_first = sorted(by_id, key=lambda index: ranks[index])
    else:
        scores = scores_of(ranking, ranker)
        best_first = sorted(by_id, key=lambda index: scores[index] or 0.0, reverse=True)
    best_of_id: dict[str, int] = {}
    for index in best_first:
        best_of_id.setdefault(ids[index], index)
    return tuple(best_of_id.values())


def scores_of(ranking: Ranking, ranker: str) -> Sequence[float | None]:
    """The scores of *ranker*, parallel to the candidates of the message."""
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
    """1 if any relevant candidate is within the cutoff, else 0."""
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
    """DCG over the DCG of the ideal order of judged candidates, both cut, at most 1; else 0."""
    ideal = dcg(sorted(grades.values(), reverse=True), cutoff)
    if n_relevant(grades) == 0:
        return 0.0
    return min(dcg([grades.get(name, 0.0) for name in ranked], cutoff) / ideal, 1.0)


def average_precision(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    """Adds hits/i over the relevant ranks within the cutoff from rank 1 down, divides by R."""
    total = 0.0
    for hits, i in enumerate(relevant_ranks(ranked, grades), start=1):
        if i <= cutoff:
            total = total + hits / i
    return total / n_relevant(grades) if n_relevant(grades) else 0.0


def precision(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    """Hits over the cutoff, also for shorter lists."""
    return sum(1 for i in relevant_ranks(ranked, grades) if i <= cutoff) / cutoff


def recall(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    """Hits over the number of relevant candidates."""
    hits = sum(1 for i in relevant_ranks(ranked, grades) if i <= cutoff)
    return hits / n_relevant(grades) if n_relevant(grades) else 0.0


def f_measure(ranked: Sequence[str], grades: Grades, cutoff: int, b: Fraction) -> float:
    """(1 + b^2) P R / (b^2 P + R), or 0."""
    p, r = precision(ranked, grades, cutoff), recall(ranked, grades, cutoff)
    square = float(b * b)
    return (1.0 + square) * p * r / (square * p + r) if r > 0 else 0.0


def average_precision_of_reachable(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    """Divides by min(R, k)."""
    ranks = [i for i in relevant_ranks(ranked, grades) if i <= cutoff]
    total = 0.0
    for hits, i in enumerate(ranks, start=1):
        total = total + hits / i
    return total / min(n_relevant(grades), cutoff) if n_relevant(grades) else 0.0


def graded_average_precision(
    ranked: Sequence[str], grades: Grades, cutoff: int, best: int
) -> float:
    """Adds P(i) x (min(g, best) / best), divides by R."""
    total = 0.0
    for hits, i in enumerate(relevant_ranks(ranked, grades), start=1):
        if i <= cutoff:
            total = total + (hits / i) * (min(grades[ranked[i - 1]], best) / best)
    return total / n_relevant(grades) if n_relevant(grades) else 0.0


def expected_reciprocal_rank(
    ranked: Sequence[str], grades: Grades, cutoff: int, best: int
) -> float:
    """Adds the probability of a stop at rank i, divided by i, from rank 1 down."""
    going_on, total = 1.0, 0.0
    for i, name in enumerate(ranked[:cutoff], start=1):
        stops = gain(min(grades.get(name, 0.0), best)) / 2.0**best
        total = total + going_on * stops / i
        going_on = going_on * (1.0 - stops)
    return total


def rank_biased_precision(ranked: Sequence[str], grades: Grades, p: Fraction) -> float:
    """Powers are the nearest doubles."""
    total = 0.0
    for i in relevant_ranks(ranked, grades):
        total = total + float(p ** (i - 1))
    return float(1 - p) * total


def linear_ndcg(ranked: Sequence[str], grades: Grades, cutoff: int) -> float:
    """DCG with the grade as the gain."""
    return decayed_ndcg(ranked, grades, cutoff, lambda grade: grade, {})


def decayed_ndcg(
    ranked: Sequence[str],
    grades: Grades,
    cutoff: int,
    gain_of: Callable[[float], float],
    freshness: Mapping[str, float],
) -> float:
    """NDCG with gains times freshness, in the list and in the ideal order."""
    gains = {name: gain_of(grade) * freshness.get(name, 1.0) for name, grade in grades.items()}
    ideal = discounted(sorted(gains.values(), reverse=True)[:cutoff])
    found = discounted([gains.get(name, 0.0) for name in ranked][:cutoff])
    return min(found / ideal, 1.0) if ideal > 0 else 0.0


def discounted(gains: Sequence[float]) -> float:
    """Adds gain x D(i) of each gain from rank 1 down."""
    total = 0.0
    for i, one in enumerate(gains, start=1):
        total = total + one * discount(i)
    return total


def freshness_of(ranking: Ranking, known: Known) -> dict[str, float]:
    """2^-(age / half-life) by candidate; the first mention of a repeated candidate counts."""
    factors: dict[str, float] = {}
    if not known.freshness_half_life_ms or ranking.published_ms is None:
        return factors
    for name, published_ms in zip(ranking.candidate_ids, ranking.published_ms, strict=True):
        age_ms = 0 if published_ms is None else max(0, known.event_time_ms - published_ms)
        factors.setdefault(name, halved(age_ms, known.freshness_half_life_ms))
    return factors


@cache
def halved(age_ms: int, half_life_ms: int) -> float:
    """2^-(age / half-life)."""
    with localcontext() as context:
        context.prec = 80
        return float(Decimal(2) ** (-Decimal(age_ms) / Decimal(half_life_ms)))


# -- subtopics ----------------------------------------------------------------------------------


def novelty(topics: Sequence[str], seen: Counter[str], alpha: Fraction) -> float:
    """Adds powers of 1 - alpha, the least seen first, and multiplies equal ones by their count."""
    total = 0.0
    for times, n in sorted(Counter(seen[topic] for topic in set(topics)).items()):
        total = total + n * float((1 - alpha) ** times)
    return total


def novelty_dcg(
    order: Sequence[str], topics: Mapping[str, Sequence[str]], alpha: Fraction
) -> float:
    """Adds novelty x D(i) from rank 1 down; only relevant candidates are in *topics*."""
    seen: Counter[str] = Counter()
    total = 0.0
    for i, name in enumerate(order, start=1):
        total = total + novelty(topics.get(name, ()), seen, alpha) * discount(i)
        seen.update(set(topics.get(name, ())))
    return total


def greedy_order(topics: Mapping[str, Sequence[str]], alpha: Fraction) -> list[str]:
    """The ideal order: the candidate with the largest gain comes next, ties by id descending."""
    seen: Counter[str] = Counter()
    left, order = sorted(topics, key=str.encode, reverse=True), []
    while left:
        best = max(left, key=lambda name: novelty(topics[name], seen, alpha))  # first if equal
        left.remove(best)
        order.append(best)
        seen.update(set(topics[best]))
    return order


def of_subtopics(
    family: str,
    ranked: Sequence[str],
    grades: Grades,
    cutoff: int,
    alpha: Fraction,
    known: Known,
) -> float | None:
    """alpha_ndcg or subtopic_recall; None for a query without subtopics."""
    if not any(topics for _, topics in known.subtopics):
        return None
    topics = {name: t for name, t in known.subtopics if grades.get(name, 0.0) > 0}
    if family == "alpha_ndcg":
        ideal = novelty_dcg(greedy_order(topics, alpha)[:cutoff], topics, alpha)
        found = novelty_dcg(ranked[:cutoff], topics, alpha)
        return min(found / ideal, 1.0) if ideal > 0 else 0.0
    wanted = {topic for names in topics.values() for topic in names}
    seen = {topic for name in ranked[:cutoff] for topic in topics.get(name, ())}
    return len(seen) / len(wanted) if wanted else 0.0


FAMILIES = {
    "top": hit,
    "hit": hit,
    "mrr": reciprocal_rank,
    "ndcg": ndcg,
    "ndcg_linear": linear_ndcg,
    "map": average_precision,
    "map_min": average_precision_of_reachable,
    "p": precision,
    "r": recall,
}


def value(
    measure: str,
    ranked: Sequence[str],
    grades: Grades,
    known: Known | None = None,
    freshness: Mapping[str, float] | None = None,
) -> float | None:
    """The value of *measure* for a list and the grades of a query; None if there is no value."""
    known = known or Known()
    match = NAME.fullmatch(re.sub("^top", "hit@", measure))
    if match is None:
        raise ValueError(f"the oracle does not know the measure {measure!r}")
    family, number = match[1], Fraction(match[2] or 0)
    if match[3]:
        grades = {name: g if g >= Fraction(match[3]) else 0.0 for name, g in grades.items()}
    cutoff = int(match[4]) if match[4] else len(ranked) + len(grades) + 1
    if known.judged_only:
        ranked = [name for name in ranked if name in grades]
    judged = sum(1 for name in ranked[:cutoff] if name in grades)
    there = min(cutoff, len(ranked))
    special: dict[str, Callable[[], float | None]] = {
        "f1": lambda: f_measure(ranked, grades, cutoff, Fraction(1)),
        "fbeta": lambda: f_measure(ranked, grades, cutoff, number),
        "rprec": lambda: (
            precision(ranked, grades, n_relevant(grades)) if n_relevant(grades) else 0.0
        ),
        "map_graded": lambda: graded_average_precision(
            ranked, grades, cutoff, known.map_graded_max_grade
        ),
        "map_graded_ceiling": lambda: graded_average_precision(
            sorted(grades, key=lambda name: grades[name], reverse=True),
            grades,
            cutoff,
            known.map_graded_max_grade,
        ),
        "err": lambda: expected_reciprocal_rank(ranked, grades, cutoff, known.err_max_grade),
        "rbp": lambda: rank_biased_precision(ranked, grades, number),
        "judged": lambda: judged / there if there else 0.0,
        "unjudged": lambda: (there - judged) / cutoff,
        "alpha_ndcg": lambda: of_subtopics(
            family, ranked, grades, cutoff, number if match[2] else Fraction(1, 2), known
        ),
        "subtopic_recall": lambda: of_subtopics(family, ranked, grades, cutoff, Fraction(0), known),
    }
    if freshness and family in ("ndcg", "ndcg_linear"):
        gain_of = gain if family == "ndcg" else float
        return decayed_ndcg(ranked, grades, cutoff, gain_of, freshness)
    if family in ("ctr", "abandoned", "ips_dcg", "ips_clicks", "ips_clipped"):
        return None  # before it settles; afterwards `Query.seen_units` and `Query.click_units`
    if family in special:
        return special[family]()
    return FAMILIES[family](ranked, grades, cutoff)


@cache
def value_units(ranking: Ranking, ranker: str, measure: str, known: Known) -> int | None:
    """The contribution of a query to a total; None without a value."""
    found = value(
        measure,
        ranked_ids(ranking, ranker),
        dict(known.grades),
        known,
        freshness_of(ranking, known),
    )
    return None if found is None else units(found)

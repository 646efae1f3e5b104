"""Measures computed by hand, their names and tables, and their independence of the batch."""

import re
from decimal import Context, Decimal
from fractions import Fraction
from math import inf, log2, nextafter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from evaluator.core.measures import (
    MAX_GRADE,
    MAX_MEASURES,
    NEVER_RANKED,
    UNITS_PER_ONE,
    JudgedLists,
    MeasureSet,
    UnknownMeasureError,
    to_units,
)
from evaluator.core.measures.registry import known_measures, parse_measure
from evaluator.core.measures.tables import decay, discount, gain
from tests.core.build import Task, judgment, ranking
from tests.repeats import repeated, sized


def value(measure, grades, order="a b c d e f"):
    """Of one query: *grades* of the candidates in *order*, and of never ranked ones."""
    task = Task(measure)
    task.rank(ranking(order))
    task.judge(judgment(grades, at=1))
    return task.value()


# By hand. D(1) = 1, D(2) = 1/log2(3), D(3) = 1/2; gains of the grades 1, 2, 3 are 1, 3, 7.


@pytest.mark.parametrize(
    ("measure", "grades", "expected"),
    [
        ("top1", {"a": 1}, 1),
        ("top1", {"b": 1}, 0),
        ("top1", {"a": 0.25}, 1),
        ("top3", {"c": 1}, 1),
        ("top3", {"d": 1}, 0),
        ("hit@5", {"e": 1}, 1),
        ("hit@5", {"f": 1}, 0),
        ("mrr", {"c": 1, "f": 3}, 1 / 3),
        ("mrr", {"f": 1}, 1 / 6),
        ("mrr", {"a": 0}, 0),
        ("mrr@3", {"c": 1}, 1 / 3),
        ("mrr@3", {"d": 1}, 0),
        ("ndcg", {"b": 2}, (3 / log2(3)) / 3),
        ("ndcg", {"a": 1, "c": 2}, (1 + 3 / 2) / (3 + 1 / log2(3))),
        ("ndcg", {"b": 3, "c": 1, "a": 0}, (7 / log2(3) + 1 / 2) / (7 + 1 / log2(3))),
        ("ndcg", {"b": 0.5}, 1 / log2(3)),
        ("ndcg@2", {"a": 1, "c": 2}, 1 / (3 + 1 / log2(3))),
        ("ndcg@1", {"a": 1, "c": 2}, 1 / 3),
        ("ndcg@1", {"b": 2}, 0),
        ("ndcg@10", {"a": 2, "never": 2}, 3 / (3 + 3 / log2(3))),
        ("map", {"a": 1}, 1),
        ("map", {"b": 1, "d": 1}, (1 / 2 + 2 / 4) / 2),
        ("map", {"a": 2, "c": 1, "never": 1}, (1 / 1 + 2 / 3) / 3),
        ("map@3", {"b": 1, "d": 1}, (1 / 2) / 2),
        ("map@1", {"a": 1, "b": 1, "c": 1}, (1 / 1) / 3),
        ("map", {"a": 0, "f": 1}, 1 / 6),
        ("map", {"b": 0.25, "d": 0.5}, (1 / 2 + 2 / 4) / 2),
    ],
)
def test_measures_equal_values_computed_by_hand(measure, grades, expected):
    assert value(measure, grades) == pytest.approx(expected, abs=2**-41)


@pytest.mark.parametrize("measure", ["top1", "hit@2", "mrr", "ndcg", "ndcg@1", "map", "map@5"])
def test_the_best_order_has_value_1_and_nothing_relevant_has_value_0(measure):
    assert value(measure, {"a": 3, "b": 0}) == 1
    assert value(measure, {"a": 0, "b": 0}) == 0
    assert value(measure, {"never": 3}) == 0


@pytest.mark.parametrize("measure", ["ndcg", "ndcg@3", "map"])
def test_unjudged_candidates_take_up_ranks(measure):
    assert value(measure, {"b": 1}, "a b") == value(measure, {"b": 1, "a": 0}, "a b")
    assert value(measure, {"b": 1}, "a b") < value(measure, {"b": 1}, "b a")


def test_a_cutoff_beyond_the_list_means_the_whole_list():
    grades = {"b": 2, "e": 1, "never": 1}
    for name in ("mrr", "ndcg", "map"):
        assert value(f"{name}@999999", grades) == value(name, grades)


def test_grades_up_to_31_are_distinguished():
    dcg = (2**31 - 1) + (2**30 - 1) / log2(3)
    assert value("ndcg", {"a": 31, "b": 30}) == 1
    assert value("ndcg", {"b": 31, "a": 30}) == pytest.approx(
        ((2**30 - 1) + (2**31 - 1) / log2(3)) / dcg, abs=2**-41
    )


# Names


def test_top1_and_hit_at_1_are_one_column():
    measures = MeasureSet.parse(["hit@1", "top1", "mrr", "top3", "hit@3", "mrr"])
    assert measures.spellings == ("hit@1", "top1", "mrr", "top3", "hit@3")
    assert measures.canonical == ("top1", "mrr", "top3")
    assert [measures.columns[name] for name in measures.spellings] == [0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    "spelling", ["top1", "top3", "hit@7", "mrr", "mrr@10", "ndcg", "ndcg@5", "map", "map@999999"]
)
def test_a_known_name_is_its_own_canonical_name(spelling):
    assert parse_measure(spelling).canonical == spelling


def test_the_default_measures_are_known():
    assert len(MeasureSet.parse("top1,top3,mrr,ndcg@10,map@10".split(",")).measures) == 5


@pytest.mark.parametrize(
    "spelling",
    [
        "nope", "", "hit", "top2", "top1@3", "ndcg@0", "ndcg@-1", "ndcg@1.5", "ndcg@", "@3",
        "ndcg@03", "NDCG", " ndcg", "ndcg ", "ndcg\n", "ndcg@k", "ndcg@1000000", "mrr@10@10",
        "ndcg@١",
    ],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_the_list_of_known_ones(spelling):
    with pytest.raises(UnknownMeasureError) as refusal:
        MeasureSet.parse(["mrr", spelling])
    assert repr(spelling) in str(refusal.value)
    for known in ("top1", "top3", "hit@k", "mrr", "mrr@k", "ndcg", "ndcg@k", "map", "map@k"):
        assert known in str(refusal.value)
    assert "k stands for a whole number from 1 to 999999" in str(refusal.value)


def test_every_listed_measure_can_be_parsed():
    assert "hit" not in known_measures()
    spelled = [re.sub(r"\[[abp]\]", "[0.5]", name) for name in known_measures()]
    MeasureSet.parse([name.replace("@k", "@4") for name in spelled])


def test_exactly_the_known_measures_are_defined_in_the_documents():
    page = Path(__file__).parents[2].joinpath("docs/measures.md").read_text("utf-8")
    table = page.split("| name | value | source |\n")[1].split("\n\n")[0]
    names = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    assert sorted(known_measures()) == sorted(re.findall(r"`([^`]+)`", " ".join(names)))


def test_one_to_256_measures_can_be_configured():
    assert MAX_MEASURES == 256
    assert len(MeasureSet.parse([f"ndcg@{k}" for k in range(1, 257)]).measures) == 256
    for names in ([], [f"ndcg@{k}" for k in range(1, 258)]):
        with pytest.raises(UnknownMeasureError, match="configure 1 to 256"):
            MeasureSet.parse(names)


# Tables

PRECISE = Context(prec=120)


def is_nearest(double, exact):
    """Whether no other double is nearer to *exact*, which is no midpoint."""
    error = abs(Fraction(double) - Fraction(exact))
    others = (nextafter(double, inf), nextafter(double, -inf))
    return all(error < abs(Fraction(other) - Fraction(exact)) for other in others)


@pytest.mark.slow(alone=False)
def test_discounts_are_the_doubles_nearest_to_1_over_log2_of_rank_plus_1():
    ranks = [*range(1, 1_001, sized(1, quick=7)), 1_024, 4_095]
    ln2 = PRECISE.ln(Decimal(2))
    for rank, found in zip(ranks, discount(np.array(ranks)).tolist(), strict=True):
        assert is_nearest(found, PRECISE.divide(ln2, PRECISE.ln(Decimal(rank + 1)))), rank
    assert discount(np.array([0])).tolist() == [0.0]
    assert discount(np.array([[1, 3], [7, 15]])).tolist() == [[1, 1 / 2], [1 / 3, 1 / 4]]


def test_whole_gains_are_2_to_the_grade_minus_1():
    grades = np.arange(MAX_GRADE + 1.0)
    assert gain(grades).tolist() == [2**grade - 1 for grade in range(32)]


@pytest.mark.parametrize(
    ("digits", "grades"),
    [
        (100, [Random(3).uniform(0, 31) for _ in range(50)]),
        (100, [0.5, 1e-17, nextafter(1, 0), nextafter(1, 2), nextafter(31, 0)]),
        (800, [5e-324, 2.0**-1022, 1e-300]),
    ],
)
def test_fractional_gains_are_the_nearest_doubles(digits, grades):
    context = Context(prec=digits)
    for grade, found in zip(grades, gain(np.array(grades)).tolist(), strict=True):
        exact = context.subtract(context.power(Decimal(2), Decimal(grade)), Decimal(1))
        assert is_nearest(found, exact), grade


def test_decay_is_the_nearest_double_to_2_to_the_minus_half_lives():
    random = Random(6)
    context = Context(prec=100)
    pairs = [(random.randrange(10**k), random.randrange(1, 10**9)) for k in range(1, 12)] * 3
    pairs += [(1, 2**70), (2**62, 2**62 - 1), (999_999, 1_000), (2**40, 3)]
    for age_ms, half_life_ms in pairs:
        power = context.divide(Decimal(-age_ms), Decimal(half_life_ms))
        exact = context.power(Decimal(2), power)
        (found,) = decay(np.array([age_ms]), half_life_ms).tolist()
        assert found == float(exact), (age_ms, half_life_ms)
    assert decay(np.array([[0, 10], [-3, 30]]), 10).tolist() == [[1, 1 / 2], [1, 1 / 8]]


def test_units_round_halves_to_even():
    half = 0.5 / UNITS_PER_ONE
    values = [0.0, half, 3 * half, 5 * half, 7 * half, 1.0, 1 / 3]
    assert to_units(np.array(values)).tolist() == [
        0, 0, 2, 2, 4, 2**40, round(Fraction(1 / 3) * 2**40),
    ]  # fmt: skip


# A value does not depend on the batch


def random_queries(random, n):
    """Rankings of 0 to 40 candidates, and judgments of some, of fractional and high grades."""
    rankings, judgments = [], []
    for i in range(n):
        size = random.choice((0, 1, 2, 3, 7, 8, 9, 20, 33, 40))
        names = [f"c{j}" for j in range(size)]
        scores = [random.choice((random.random(), 0.5)) for _ in names]
        scorers = {"other": [random.random() for _ in names]} if random.random() < 0.5 else None
        more = {}
        if random.random() < 0.3:
            more["published_ms"] = [random.choice((None, 0, 5, 900)) for _ in names]
        if random.random() < 0.3:
            more["subtopics"] = {name: random.sample("xyz", 2) for name in names[:20]}
        rankings.append(
            ranking(names, trace=f"t{i}", at=1_000, scores=scores, scorers=scorers, **more)
        )
        judged = random.sample([*names, "x", "y", "z"], random.randint(1, min(size + 3, 25)))
        grades = {name: random.choice((0, 1, 2, 31, random.random() * 3)) for name in judged}
        judgments.append(judgment(grades, at=1_001, trace=f"t{i}"))
    return rankings, judgments


def cut(records, sizes):
    """Groups of these sizes, one after the other."""
    groups, rest = [], records
    for size in sizes:
        groups.append(rest[:size])
        rest = rest[size:]
    assert not rest
    return groups


AVERAGED = (
    "top1,hit@4,mrr,mrr@3,ndcg,ndcg@3,ndcg_linear@10,map,map@5,map_min@3,map_graded@10,p@5,r@5,f1@3,"
    "fbeta[2]@10,rbp[0.85],judged@5,unjudged@5,subtopic_recall@3"
)
ALL = f"{AVERAGED},err@10,alpha_ndcg@10,alpha_ndcg[0.7]@3"
SETTINGS = {
    "as they come": {"measures": ALL},
    "ties averaged": {"measures": AVERAGED, "ties": "average"},
    "fresh and condensed": {
        "measures": ALL, "judged_only": True, "freshness_half_life_ms": 333, "empty": "skip",
    },
}  # fmt: skip


def measured(groups, **settings):
    """Units of every query and the sums, when rankings and judgments come in these groups."""
    task = Task(**settings)
    for rankings, judgments in groups:
        task.read(rankings, judgments)
    return (
        {evaluation.trace_id: evaluation.units for evaluation in task.evaluations},
        {path: n for path, n in task.engine.tally().items() if path[0] == "running"},
    )


@pytest.mark.parametrize("part", repeated(3, quick=1))
@pytest.mark.parametrize("what", SETTINGS)
def test_values_do_not_depend_on_the_batch_they_are_measured_in(what, part):
    random, settings, n = Random(11 + part), SETTINGS[what], sized(40, quick=12)
    rankings, judgments = random_queries(random, n)
    alone = measured(
        ([[one], [other]] for one, other in zip(rankings, judgments, strict=True)), **settings
    )
    assert len(alone[0]) == n
    for size in range(2 + part, n + 1, 5):  # every size, in one of the parts
        sizes = [size] * -(-n // size)
        groups = zip(cut(rankings, sizes), cut(judgments, sizes), strict=True)
        assert measured(groups, **settings) == alone
    random.shuffle(rankings)
    random.shuffle(judgments)
    sizes = [random.randint(1, 30) for _ in range(n)]
    apart = [(group, ()) for group in cut(rankings, sizes)]
    apart += [((), group) for group in cut(judgments, sizes)]
    assert measured(apart, **settings) == alone


def test_values_are_summed_from_rank_1_down_in_doubles():
    random = Random(5)
    for _ in range(200):
        grades = [random.choice((0.0, 1.0, 2.0, 3.0, random.random())) for _ in range(12)]
        ranks = np.arange(1, 13)
        gains, discounts = gain(np.array(grades)), discount(ranks)
        best = sorted(gains.tolist(), reverse=True)
        dcg = idcg = precision = hits = 0.0
        for i in range(12):
            dcg += gains[i] * discounts[i]
            idcg += best[i] * discounts[i]
            hits += grades[i] > 0
            precision += hits / (i + 1) if grades[i] > 0 else 0.0
        lists = JudgedLists(
            ranks=ranks[None, :],
            grades=np.array([grades]),
            columns=ranks[None, :] - 1,
            n_ranked=np.array([12]),
            query_of=np.array([0]),
            judged_grades=np.array([grades]),
            ideal_grades=np.array([sorted(grades, reverse=True)]),
            n_relevant=np.array([hits], np.int64),
        )
        found = MeasureSet.parse(["ndcg", "map"]).values(lists)[0].tolist()
        assert found == [dcg / idcg if idcg else 0.0, precision / hits if hits else 0.0]


def test_padding_and_never_ranked_candidates_add_nothing():
    lists = JudgedLists(
        ranks=np.array([[1, 3, NEVER_RANKED, NEVER_RANKED]]),
        grades=np.array([[0.0, 1.0, 2.0, 0.0]]),
        columns=np.array([[0, 1, 2, 3]]),
        n_ranked=np.array([3]),
        query_of=np.array([0]),
        judged_grades=np.array([[0.0, 1.0, 2.0, 0.0]]),
        ideal_grades=np.array([[2.0, 1.0, 0.0, 0.0]]),
        n_relevant=np.array([2]),
    )
    found = MeasureSet.parse(["hit@2", "mrr", "ndcg", "map"]).values(lists)[0]
    assert found.tolist() == pytest.approx(
        [0, 1 / 3, (1 / 2) / (3 + 1 / log2(3)), (1 / 3) / 2], rel=1e-15
    )

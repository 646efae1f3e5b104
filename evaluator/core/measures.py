"""Ranking measures: small pure functions over many judged lists at once.

A judged list is kept compact: only its judged candidates, in rank order. What was never judged
adds nothing to any sum, so leaving it out changes no bit, and a list of a thousand candidates
with five judgments costs five columns. Sums run column by column, elementwise over the lists,
from rank 1 down: the value of a list does not depend on the lists beside it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from evaluator.core.types import FloatArray, IntArray

NEVER_RANKED = 1 << 20
"""Rank of a judged candidate that the ranker did not return; also of padding."""

WHOLE_LIST = NEVER_RANKED - 1
"""Cutoff of a measure that has none."""

MAX_GRADE = 31
MAX_MEASURES = 256
UNITS_PER_ONE = 1 << 40
"""A value in [0, 1] is summed as an integer of this resolution."""

_PRECISE = Context(prec=60)
_LN2 = _PRECISE.ln(Decimal(2))


class UnknownMeasureError(ValueError):
    """The name is not one of the measures; the message lists them."""


@dataclass(frozen=True, slots=True)
class JudgedLists:
    """Judged candidates of many lists, in rank order.

    Several lists (one per ranker) share a query. `ranks` and `grades` are
    `[n_lists, n_judged]`: ranks ascending, NEVER_RANKED at the end; the grade beside each rank,
    0 for padding. `ideal_grades` is `[n_queries, n_judged]`, grades descending; `n_relevant` is
    `[n_queries]`; `query_of` is `[n_lists]`, the query of each list.
    """

    ranks: IntArray
    grades: FloatArray
    ideal_grades: FloatArray
    n_relevant: IntArray
    query_of: IntArray

    @property
    def first_relevant(self) -> IntArray:
        """Rank of the first relevant candidate of each list, NEVER_RANKED if none: `[n_lists]`."""
        best: IntArray = np.where(self.grades > 0, self.ranks, NEVER_RANKED).min(
            axis=1, initial=NEVER_RANKED
        )
        return best


@lru_cache(maxsize=16)
def _discounts(size: int) -> FloatArray:
    """`table[rank]`: the double nearest to 1/log2(rank + 1); 0 for rank 0."""
    exact = (
        float(_PRECISE.divide(_LN2, _PRECISE.ln(Decimal(rank + 1)))) for rank in range(1, size)
    )
    return np.array([0.0, *exact])


def discount(ranks: IntArray) -> FloatArray:
    """1/log2(rank + 1), elementwise, correctly rounded; 0 for rank 0.

    >>> discount(np.array([0, 1, 3]))
    array([0. , 1. , 0.5])
    """
    largest = int(ranks.max(initial=0))
    discounts: FloatArray = _discounts(max(1024, 1 << largest.bit_length()))[ranks]
    return discounts


_WHOLE_GAINS: FloatArray = np.array([float(2**grade - 1) for grade in range(MAX_GRADE + 1)])


@lru_cache(maxsize=65_536)
def _fractional_gain(grade: float) -> float:
    """2^grade - 1 = x + x^2/2! + ... with x = grade ln 2: nothing cancels for a small grade."""
    x = _PRECISE.multiply(Decimal(grade), _LN2)
    term, total, n = x, x, 1
    while term > total.scaleb(-50):
        n += 1
        term = _PRECISE.divide(_PRECISE.multiply(term, x), Decimal(n))
        total = _PRECISE.add(total, term)
    return float(total)


def gain(grades: FloatArray) -> FloatArray:
    """2^grade - 1, elementwise, correctly rounded, for grades in 0..MAX_GRADE.

    >>> gain(np.array([0.0, 1.0, 2.0]))
    array([0., 1., 3.])
    """
    whole = grades.astype(np.int64)
    gains: FloatArray = _WHOLE_GAINS[whole]
    fractional = whole != grades
    if fractional.any():
        gains[fractional] = [_fractional_gain(grade) for grade in grades[fractional].tolist()]
    return gains


def _discounted_sum(gains: FloatArray, ranks: IntArray, cutoff: int) -> FloatArray:
    weighted = gains * discount(np.where(ranks <= cutoff, ranks, 0))
    total = np.zeros(len(gains))
    for column in range(gains.shape[1]):
        total += weighted[:, column]
    return total


def hit(lists: JudgedLists, cutoff: int) -> FloatArray:
    """1 where a relevant candidate stands at or above the cutoff, else 0: `[n_lists]`."""
    return (lists.first_relevant <= cutoff).astype(np.float64)


def reciprocal_rank(lists: JudgedLists, cutoff: int) -> FloatArray:
    """1 / rank of the first relevant candidate at or above the cutoff, else 0: `[n_lists]`."""
    first = lists.first_relevant
    reciprocal: FloatArray = np.where(first <= cutoff, 1.0 / first, 0.0)
    return reciprocal


def ndcg(lists: JudgedLists, cutoff: int) -> FloatArray:
    """DCG over the DCG of the best order of all judged candidates: `[n_lists]`.

    0 where nothing is relevant. Gain 2^grade - 1, discount 1/log2(rank + 1).
    Source: Burges et al. 2005, Learning to rank using gradient descent.
    """
    ideal_ranks = np.arange(1, lists.ideal_grades.shape[1] + 1)[None, :]
    ideal = _discounted_sum(gain(lists.ideal_grades), ideal_ranks, cutoff)[lists.query_of]
    found = _discounted_sum(gain(lists.grades), lists.ranks, cutoff)
    return np.divide(found, ideal, out=np.zeros_like(found), where=ideal > 0)


def average_precision(lists: JudgedLists, cutoff: int) -> FloatArray:
    """Sum of the precision at each relevant rank up to the cutoff, over all relevant: `[n_lists]`.

    0 where nothing is relevant. Relevant candidates that were never ranked count below the line.
    Source: Buckley and Voorhees 2000, Evaluating evaluation measure stability.
    """
    counted = (lists.grades > 0) & (lists.ranks <= cutoff)
    hits = np.zeros(len(counted))
    total = np.zeros(len(counted))
    for column in range(counted.shape[1]):
        relevant = counted[:, column]
        hits += relevant
        total += np.where(relevant, hits / lists.ranks[:, column], 0.0)
    n_relevant = lists.n_relevant[lists.query_of]
    return np.divide(total, n_relevant, out=np.zeros_like(total), where=n_relevant > 0)


MeasureFunction = Callable[[JudgedLists, int], FloatArray]


class MeasureKind(NamedTuple):
    """A measure by name. `takes_cutoff`: "always", "never" or "optional"."""

    function: MeasureFunction
    takes_cutoff: str


REGISTRY: dict[str, MeasureKind] = {
    "hit": MeasureKind(hit, "always"),
    "mrr": MeasureKind(reciprocal_rank, "optional"),
    "ndcg": MeasureKind(ndcg, "optional"),
    "map": MeasureKind(average_precision, "optional"),
}
ALIASES = {"top1": "hit@1", "top3": "hit@3"}
"""Names for hit at a cutoff; they are also the canonical names of those two."""

_NAME = re.compile(r"(?P<name>[a-z_0-9]+?)(?:@(?P<cutoff>[1-9][0-9]{0,5}))?")


class Measure(NamedTuple):
    """One measure to compute. `canonical` names it in sums and on Prometheus."""

    canonical: str
    function: MeasureFunction
    cutoff: int

    def __call__(self, lists: JudgedLists) -> FloatArray:
        """Values in [0, 1]: `[n_lists]`."""
        return self.function(lists, self.cutoff)


def known_measures() -> list[str]:
    """The spellings that can be asked for, with k for a cutoff."""
    spellings = list(ALIASES)
    for name, kind in REGISTRY.items():
        spellings += [name] if kind.takes_cutoff != "always" else []
        spellings += [f"{name}@k"] if kind.takes_cutoff != "never" else []
    return spellings


def parse_measure(spelling: str) -> Measure:
    """The measure of a name such as `ndcg@10`.

    Raises:
        UnknownMeasureError: if there is none; says which there are.

    >>> parse_measure("hit@1").canonical
    'top1'
    """
    match = _NAME.fullmatch(ALIASES.get(spelling, spelling))
    kind = REGISTRY.get(match["name"]) if match else None
    if match is None or kind is None:
        raise _unknown(spelling)
    cutoff = match["cutoff"]
    if (cutoff is None and kind.takes_cutoff == "always") or (
        cutoff is not None and kind.takes_cutoff == "never"
    ):
        raise _unknown(spelling)
    full = match[0]
    canonical = next((alias for alias, name in ALIASES.items() if name == full), full)
    return Measure(canonical, kind.function, int(cutoff) if cutoff else WHOLE_LIST)


def _unknown(spelling: str) -> UnknownMeasureError:
    return UnknownMeasureError(
        f"{spelling!r} is not a measure. Known are: {', '.join(known_measures())} "
        "(k stands for a whole number, e.g. ndcg@10)."
    )


@dataclass(frozen=True, slots=True)
class MeasureSet:
    """The measures asked for, each computed once, however it is spelled."""

    spellings: tuple[str, ...]
    measures: tuple[Measure, ...]

    @classmethod
    def parse(cls, spellings: Sequence[str]) -> "MeasureSet":
        """The set of these names; a name asked for twice counts once.

        Raises:
            UnknownMeasureError: for a name that is no measure, none at all, or too many.
        """
        asked = tuple(dict.fromkeys(spellings))
        if not 1 <= len(asked) <= MAX_MEASURES:
            raise UnknownMeasureError(
                f"{len(asked)} measures were asked for; ask for 1 to {MAX_MEASURES}, "
                "e.g. top1,top3,mrr,ndcg@10,map@10."
            )
        parsed = {measure.canonical: measure for measure in map(parse_measure, asked)}
        return cls(asked, tuple(parsed.values()))

    @property
    def canonical(self) -> tuple[str, ...]:
        """One name per column of values, in order."""
        return tuple(measure.canonical for measure in self.measures)

    def column_of(self, spelling: str) -> int:
        """The column of values that a spelling means."""
        return self.canonical.index(parse_measure(spelling).canonical)

    def values(self, lists: JudgedLists) -> FloatArray:
        """`[n_lists, n_measures]`, each in [0, 1]."""
        values = np.empty((len(lists.query_of), len(self.measures)))
        for column, measure in enumerate(self.measures):
            values[:, column] = measure(lists)
        return values


def to_units(values: FloatArray) -> IntArray:
    """Values in [0, 1] as integers in units of 2^-40, halves to even, elementwise.

    >>> to_units(np.array([0.5]))
    array([549755813888])
    """
    units: IntArray = np.rint(values * UNITS_PER_ONE).astype(np.int64)
    return units

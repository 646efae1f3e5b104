"""Arguments of measures: judged lists, many at a time, and the terms of a measure's name.

Only the judged candidates of a list are present, in rank order. An unjudged candidate adds nothing
to any sum, so leaving it out changes no bit, and a list of a thousand candidates with five
judgments takes five columns. Sums run column by column, elementwise over the lists, from rank 1
down: the value of a list does not depend on other lists.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from evaluator.core.types.records import FloatArray, IntArray

NEVER_RANKED: Final = 1 << 20
"""Rank of a judged candidate that the ranker did not return; also of padding."""
WHOLE_LIST: Final = NEVER_RANKED - 1
"""Cutoff of a measure without a cutoff."""
ZERO: Final = np.array(0.0)
FEW_CELLS: Final = 2_000
"""Up to this size, fewer calls on more numbers are quicker."""

BoolArray = NDArray[np.bool_]


class Terms(NamedTuple):
    """Cutoff and parameter of a measure's name, and the scales from the settings.

    `parameter` is the number in brackets, exactly as written, a decimal fraction, or its default; 0
    for a measure without one. `least_relevant` is the least relevant grade; 0: any above 0.
    `ips_clip` is the largest weight of a click.
    """

    cutoff: int = WHOLE_LIST
    parameter: Decimal = Decimal(0)
    map_graded_max_grade: int = 2
    err_max_grade: int = 4
    least_relevant: float = 0.0
    ips_clip: float = 20.0


class TieGroups(NamedTuple):
    """First and last rank of the tied candidates that each judged candidate belongs to.

    `[n_lists, n_judged]`, parallel to the ranks; NEVER_RANKED where the rank is.
    """

    firsts: IntArray
    lasts: IntArray

    @property
    def sizes(self) -> IntArray:
        """Number of tied candidates; 1 for a candidate without a tie."""
        return self.lasts - self.firsts + 1


class QuerySubtopics(NamedTuple):
    """Subtopics of one query.

    `of_judged` has the numbers of the subtopics of each judged candidate, in the columns of
    `judged_grades`; `id_order` the judged candidates' columns by candidate id, descending.
    """

    of_judged: Sequence[Sequence[int]]
    id_order: Sequence[int]


class JudgedLists(Struct, frozen=True):
    """Judged candidates of many lists, in rank order.

    Several lists (one per ranker) share a query; `query_of` is `[n_lists]`, the query of each.

    Of the lists: `ranks` and `grades` are `[n_lists, n_judged]`: ranks ascending, NEVER_RANKED at
    the end; the grade of each rank, 0 for padding. `columns`, of the same shape, has the column of
    `judged_grades` of each candidate. `n_ranked` is `[n_lists]`: candidates, repeated ones counted
    once. `ties` is present if values are averaged over tied candidates.

    Of the queries: `judged_grades` is `[n_queries, n_judged]`, in no particular order, 0 for
    padding; `ideal_grades` the same grades, descending; `n_relevant` is `[n_queries]`.
    `freshness`, `[n_queries, n_judged]` like `judged_grades`, multiplies gains. `subtopics` has
    one entry per query, None for a query without; it is None itself if no measure uses it.
    """

    ranks: IntArray
    grades: FloatArray
    columns: IntArray
    n_ranked: IntArray
    query_of: IntArray
    judged_grades: FloatArray
    ideal_grades: FloatArray
    n_relevant: IntArray
    freshness: FloatArray | None = None
    subtopics: Sequence[QuerySubtopics | None] | None = None
    ties: TieGroups | None = None

    @property
    def relevant(self) -> BoolArray:
        """Which judged candidates have a grade above 0: `[n_lists, n_judged]`."""
        return self.grades > 0

    @property
    def first_relevant(self) -> IntArray:
        """Rank of the first relevant candidate of each list, NEVER_RANKED if none: `[n_lists]`."""
        common, width = self.ranks_in_common, self.ranks.shape[1]
        from_end = np.arange(width, 0, -1, dtype=np.min_scalar_type(width))  # few bytes: fast
        column = width - (self.relevant * from_end).max(axis=1, initial=0).astype(np.int64)
        ranks = np.full((len(common), width + 1), NEVER_RANKED)
        ranks[:, :width] = common
        row = np.arange(len(common)) * (width + 1) if len(common) > 1 else 0
        first: IntArray = ranks.take(row + column)
        return first

    @property
    def relevant_of_query(self) -> IntArray:
        """`n_relevant` of the query of each list: `[n_lists]`."""
        return self.n_relevant[self.query_of]

    def relevant_from(self, grade: float) -> "JudgedLists":
        """The same lists for binary measures; candidates with a lower grade are not relevant."""
        return replace(
            self,
            grades=np.where(self.grades >= grade, self.grades, 0.0),
            n_relevant=np.count_nonzero(self.judged_grades >= grade, axis=1),
        )

    def within(self, cutoff: int) -> "JudgedLists":
        """The same lists without the columns past the cutoff.

        Ranks ascend, so column c has rank c + 1 or more. With ties, candidates of later columns may
        be within the cutoff, so all columns stay.
        """
        if cutoff >= self.ranks.shape[1] or self.ties is not None:
            return self
        return replace(
            self,
            ranks=self.ranks[:, :cutoff],
            grades=self.grades[:, :cutoff],
            columns=self.columns[:, :cutoff],
        )

    @property
    def ranks_in_common(self) -> IntArray:
        """The ranks, or a single row if all lists share it; broadcasts to `ranks`."""
        return self.ranks[:1] if self.ranks.strides[0] == 0 else self.ranks

    def condensed(self) -> "JudgedLists":
        """The same lists with ranks among the judged candidates only."""
        ranked = self.ranks < NEVER_RANKED
        places = np.arange(1, self.ranks.shape[1] + 1)
        bounds = [places]
        if self.ties is not None:
            bounds += tie_bounds(self.ties.firsts)
        ranks, *ties = (np.where(ranked, bound, NEVER_RANKED) for bound in bounds)
        n_ranked = np.count_nonzero(ranked, axis=1)
        return replace(
            self, ranks=ranks, n_ranked=n_ranked, ties=TieGroups(*ties) if ties else None
        )


def _first_equal(numbers: IntArray | FloatArray) -> IntArray:
    """For each entry, the first column of the run of equal entries that it is in."""
    begins = np.zeros(numbers.shape, np.int64)
    if numbers.shape[1]:
        changed = numbers[:, 1:] != numbers[:, :-1]
        begins[:, 1:] = np.where(changed, np.arange(1, numbers.shape[1]), 0)
    return np.maximum.accumulate(begins, axis=1)


def tie_bounds(numbers: IntArray | FloatArray) -> tuple[IntArray, IntArray]:
    """First and last rank of the run of equal entries that each entry is in.

    >>> tie_bounds(np.array([[9.0, 4.0, 4.0]]))
    (array([[1, 2, 2]]), array([[1, 3, 3]]))
    """
    return 1 + _first_equal(numbers), numbers.shape[1] - _first_equal(numbers[:, ::-1])[:, ::-1]


def column_sum(terms: FloatArray) -> FloatArray:
    """The sum along the last axis, column by column from the first one.

    The sum of a list is independent of other lists and of trailing columns of zeros.
    """
    if terms.size <= FEW_CELLS and terms.shape[-1]:  # one call is quicker than one per column
        running: FloatArray = np.add.accumulate(terms, axis=-1)[..., -1] + ZERO
        return running  # as if it had begun at 0.0: no sum is -0.0
    total: FloatArray = np.zeros(terms.shape[:-1])
    for column in range(terms.shape[-1]):
        total += terms[..., column]
    return total


def running_counts(marked: BoolArray) -> FloatArray:
    """Number of marked entries from the first column to each: `[n_lists, n_judged]`."""
    counts = marked.astype(np.float64, order="F")
    for column in range(1, marked.shape[1]):
        counts[:, column] += counts[:, column - 1]
    return counts


def counts_of(marked: BoolArray) -> IntArray:
    """Number of marked entries of each list: `[n_lists]`."""
    small = marked.shape[1] < 128  # fast, where a byte can hold the count
    counts = np.add.reduce(marked.view(np.int8), axis=1, dtype=np.int8 if small else np.int64)
    wide: IntArray = counts.astype(np.int64)
    return wide


def descending(grades: FloatArray) -> FloatArray:
    """Each list in descending order, column after column in memory; -0.0 becomes 0.0."""
    whole = grades.astype(np.int16)
    if (whole == grades).all():  # in half the time
        return (-np.sort(-np.ascontiguousarray(whole), axis=1).T.copy()).astype(np.float64).T
    return np.asfortranarray(0.0 - np.sort(-np.ascontiguousarray(grades), axis=1))


def ratio(numerators: FloatArray, denominators: FloatArray | IntArray) -> FloatArray:
    """Elementwise quotient; 0 where the denominator is 0."""
    defined = denominators > 0
    return np.divide(numerators, denominators, out=np.zeros_like(numerators), where=defined)

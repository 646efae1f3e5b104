"""What a measure sees: judged lists, many at a time, compact.

Only the judged candidates of a list are there, in rank order. What was never judged adds nothing
to any sum, so leaving it out changes no bit, and a list of a thousand candidates with five
judgments costs five columns. Sums run column by column, elementwise over the lists, from rank 1
down: the value of a list does not depend on the lists beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluator.core.types.records import FloatArray, IntArray

NEVER_RANKED: Final = 1 << 20
"""Rank of a judged candidate that the ranker did not return; also of padding."""

BoolArray = NDArray[np.bool_]


class TieGroups(NamedTuple):
    """First and last rank of the tied candidates that each judged candidate stands among.

    `[n_lists, n_judged]`, parallel to the ranks; NEVER_RANKED where those are.
    """

    firsts: IntArray
    lasts: IntArray

    @property
    def sizes(self) -> IntArray:
        """How many candidates are tied; 1 for one that stands alone."""
        sizes: IntArray = self.lasts - self.firsts + 1
        return sizes


class QuerySubtopics(NamedTuple):
    """Subtopics of one query.

    `of_judged` has the numbers of the subtopics of each judged candidate, in the columns of
    `judged_grades`; `id_order` the judged candidates' columns by candidate id, descending.
    """

    of_judged: Sequence[Sequence[int]]
    id_order: Sequence[int]


@dataclass(frozen=True, slots=True)
class JudgedLists:
    """Judged candidates of many lists, in rank order.

    Several lists (one per ranker) share a query; `query_of` is `[n_lists]`, the query of each.

    Of the lists: `ranks` and `grades` are `[n_lists, n_judged]`: ranks ascending, NEVER_RANKED at
    the end; the grade beside each rank, 0 for padding. `columns`, of the same shape, says in
    which column of `judged_grades` each candidate stands. `n_ranked` is `[n_lists]`: candidates,
    repeated ones counted once. `ties` is there when tied candidates are averaged over.

    Of the queries: `judged_grades` is `[n_queries, n_judged]`, in no particular order, 0 for
    padding; `ideal_grades` the same grades, descending; `n_relevant` is `[n_queries]`.
    `freshness`, `[n_queries, n_judged]` beside `judged_grades`, multiplies gains. `subtopics` has
    one entry per query, None for a query without; it is None itself if no measure asks.
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
        relevant: BoolArray = self.grades > 0
        return relevant

    @property
    def first_relevant(self) -> IntArray:
        """Rank of the first relevant candidate of each list, NEVER_RANKED if none: `[n_lists]`."""
        width = self.ranks.shape[1]
        if len(self.ranks_in_common) == 1 and 0 < width < 128:
            return self._first_relevant_in_common()
        best: IntArray = np.where(self.relevant, self.ranks, NEVER_RANKED).min(
            axis=1, initial=NEVER_RANKED
        )
        return best

    def _first_relevant_in_common(self) -> IntArray:
        """The same where all lists have the same ranks: by columns, in bytes, in a quarter."""
        width = self.ranks.shape[1]
        from_the_end = np.arange(width, 0, -1, dtype=np.int8)
        first = (self.relevant.view(np.int8) * from_the_end).max(axis=1)  # 0 if there is none
        rank_of_column = np.append(self.ranks[0], NEVER_RANKED)
        best: IntArray = rank_of_column.take(width - first)
        return best

    @property
    def relevant_of_query(self) -> IntArray:
        """`n_relevant` of the query of each list: `[n_lists]`."""
        n_relevant: IntArray = self.n_relevant[self.query_of]
        return n_relevant

    def within(self, cutoff: int) -> "JudgedLists":
        """The same lists without columns that can only lie past the cutoff.

        Ranks ascend, so column c has rank c + 1 or more. Under ties a candidate further down may
        stand within the cutoff, so all columns stay.
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
        """The ranks, or one row of them if that is what stands behind all: broadcasts to them."""
        return self.ranks[:1] if self.ranks.strides[0] == 0 else self.ranks

    def condensed(self) -> "JudgedLists":
        """The same lists as if only judged candidates had been ranked."""
        ranked = self.ranks < NEVER_RANKED
        places = np.arange(1, self.ranks.shape[1] + 1)
        ties = None
        if self.ties is not None:
            firsts, lasts = self.ties.firsts, self.ties.lasts
            ties = TieGroups(
                np.where(ranked, 1 + first_equal(firsts), NEVER_RANKED),
                np.where(ranked, places[-1:] - first_equal(lasts[:, ::-1])[:, ::-1], NEVER_RANKED),
            )
        return JudgedLists(
            ranks=np.where(ranked, places, NEVER_RANKED),
            grades=self.grades,
            columns=self.columns,
            n_ranked=np.count_nonzero(ranked, axis=1),
            query_of=self.query_of,
            judged_grades=self.judged_grades,
            ideal_grades=self.ideal_grades,
            n_relevant=self.n_relevant,
            freshness=self.freshness,
            subtopics=self.subtopics,
            ties=ties,
        )


def first_equal(numbers: IntArray | FloatArray) -> IntArray:
    """For each entry, the column where the run of equal entries that it is in begins."""
    begins = np.zeros(numbers.shape, np.int64)
    if numbers.shape[1]:
        changed = numbers[:, 1:] != numbers[:, :-1]
        begins[:, 1:] = np.where(changed, np.arange(1, numbers.shape[1]), 0)
    first: IntArray = np.maximum.accumulate(begins, axis=1)
    return first


def column_sum(terms: FloatArray) -> FloatArray:
    """Sum of each row, column after column: `[n_lists, n_judged]` to `[n_lists]`."""
    total = np.zeros(len(terms))
    for column in range(terms.shape[1]):
        total += terms[:, column]
    return total


def running_counts(marked: BoolArray) -> FloatArray:
    """How many are marked from the first column to each: `[n_lists, n_judged]`."""
    counts = marked.astype(np.float64, order="F")  # a column lies together
    for column in range(1, marked.shape[1]):
        counts[:, column] += counts[:, column - 1]
    return counts


def counts_of(marked: BoolArray) -> IntArray:
    """How many of each list are marked: `[n_lists]`."""
    small = marked.shape[1] < 128  # quick, where a byte can hold the count
    counts = np.add.reduce(marked.view(np.int8), axis=1, dtype=np.int8 if small else np.int64)
    wide: IntArray = counts.astype(np.int64)
    return wide


def descending(grades: FloatArray) -> FloatArray:
    """Each list in descending order, a column together in memory; -0.0 becomes 0.0."""
    whole = grades.astype(np.int16)
    if (whole == grades).all():  # half the time
        return (-np.sort(-np.ascontiguousarray(whole), axis=1).T.copy()).astype(np.float64).T
    return np.asfortranarray(0.0 - np.sort(-np.ascontiguousarray(grades), axis=1))


def ratio(numerators: FloatArray, denominators: FloatArray | IntArray) -> FloatArray:
    """Elementwise quotient; 0 where the denominator is 0."""
    defined = denominators > 0
    quotients: FloatArray
    if defined.all():
        quotients = numerators / denominators  # the same, and quicker
    else:
        quotients = np.divide(
            numerators, denominators, out=np.zeros_like(numerators), where=defined
        )
    return quotients

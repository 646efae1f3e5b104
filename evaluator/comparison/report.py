"""The report of a comparison."""

from dataclasses import dataclass

from evaluator.comparison.folder import ShownRow
from evaluator.comparison.paired import Paired
from evaluator.comparison.question import Question


@dataclass(frozen=True, slots=True)
class Change:
    """A query with different values; `judged_differently`: its grades differ between sources."""

    difference: float
    baseline_value: float
    ranker_value: float
    judged_differently: bool
    baseline_row: ShownRow
    ranker_row: ShownRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One ranker and measure compared with the baseline.

    `paired` is None without a query with both values. `only_baseline` and `only_ranker` count the
    queries with one of them. `changes` are the queries with the largest differences.
    """

    ranker: str
    measure: str
    paired: Paired | None
    only_baseline: int
    only_ranker: int
    changes: tuple[Change, ...]

    @property
    def verdict(self) -> str:
        """`better` or `worse` if the interval excludes 0, `same` if no query differs."""
        if self.paired is None or self.paired.interval is None:
            return "unclear"
        if not self.paired.wins + self.paired.losses:
            return "same"
        if self.paired.interval.low > 0:
            return "better"
        return "worse" if self.paired.interval.high < 0 else "unclear"

    def fails(self, fail_below: float) -> bool:
        """Whether the difference may be below *fail_below*."""
        if self.paired is None or self.paired.interval is None:
            return True
        return self.paired.interval.low < fail_below


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """The rows of a source, and the chain of its manifest."""

    rows: int
    chain: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a comparison.

    `common` counts the queries in all sources, with or without values, and `judged_differently`
    those with different grades. `warnings` are sentences.
    """

    question: Question
    sources: tuple[SourceFacts, ...]
    common: int
    judged_differently: int
    comparisons: tuple[Comparison, ...]
    warnings: tuple[str, ...]

    @property
    def failed(self) -> tuple[Comparison, ...]:
        """The comparisons that fail; none without `fail_below`."""
        limit = self.question.fail_below
        if limit is None:
            return ()
        return tuple(comparison for comparison in self.comparisons if comparison.fails(limit))

"""The report of a comparison."""

from typing import NamedTuple

from msgspec import Struct

from evaluator.comparison.folder import ShownRow
from evaluator.comparison.paired import Paired
from evaluator.comparison.question import Question
from evaluator.core.measures import lower_is_better


class Change(Struct, frozen=True):
    """A query with different values; `judged_differently`: its grades differ between sources."""

    difference: float
    baseline_value: float
    ranker_value: float
    judged_differently: bool
    baseline_row: ShownRow
    ranker_row: ShownRow


class Level(Struct, frozen=True, kw_only=True):
    """The pairs of a level; `p_holm` is corrected over the levels of the comparison."""

    name: str
    paired: Paired
    p_holm: float | None


class Cell(NamedTuple):
    """The number of pairs with about these values."""

    baseline: float
    other: float
    pairs: int


class Mix(Struct, frozen=True, kw_only=True):
    """The difference of the means of all queries of each side, and the part that is due to the mix.

    `from_mix` is `difference` less the difference with the shares of levels of the baseline.
    """

    difference: float
    from_mix: float


class Comparison(Struct, frozen=True, kw_only=True):
    """One ranker and measure compared with the baseline.

    `paired` is None without a query with both values. `only_baseline` and `only_ranker` count the
    queries with one of them. `changes` are the queries with the largest differences. `levels` are
    those of the segment of the question, the largest difference first, and `mix` is None without.
    `cells` are pairs counted by both values, if the question asks for them.
    """

    ranker: str
    measure: str
    paired: Paired | None
    only_baseline: int
    only_ranker: int
    changes: tuple[Change, ...]
    levels: tuple[Level, ...] = ()
    mix: Mix | None = None
    cells: tuple[Cell, ...] = ()

    @property
    def verdict(self) -> str:
        return verdict_of(self.paired, self.measure)

    def fails(self, fail_below: float) -> bool:
        """Whether the difference may be below *fail_below*, or the whole interval of a level is."""
        if self.paired is None or self.paired.interval is None or self.levels_below(fail_below):
            return True
        return self.paired.interval.low < fail_below

    def levels_below(self, limit: float) -> list[str]:
        """The levels whose whole interval is below *limit*."""
        pairs = [(level.name, level.paired.interval) for level in self.levels]
        return [name for name, interval in pairs if interval and interval.high < limit]


class Mean(Struct, frozen=True, kw_only=True):
    """The mean of a ranker and measure over its queries with a value, as a difference from 0.

    `place` is the directory, if there are two. `levels` are those of the segment of the question.
    `lowest` are the queries with the lowest values.
    """

    ranker: str
    measure: str
    place: str
    paired: Paired
    levels: tuple[Level, ...] = ()
    lowest: tuple[tuple[float, ShownRow], ...] = ()


def verdict_of(result: Paired | None, measure: str) -> str:
    """`better` or `worse` if the interval excludes 0, `same` if no query differs."""
    if result is None or result.interval is None:
        return "unclear"
    if not result.wins + result.losses:
        return "same"
    verdicts = ("worse", "better") if lower_is_better(measure) else ("better", "worse")
    if result.interval.low > 0:
        return verdicts[0]
    return verdicts[1] if result.interval.high < 0 else "unclear"


class SourceFacts(Struct, frozen=True, kw_only=True):
    """The rows of a source, and the chain of its manifest."""

    rows: int
    chain: str | None


class Report(Struct, frozen=True, kw_only=True):
    """The result of a comparison.

    `common` counts the queries in all sources, with or without values, and `judged_differently`
    those with different grades. `warnings` are sentences. `means` are those of both sides, if the
    question asks for a page.
    """

    question: Question
    sources: tuple[SourceFacts, ...]
    common: int
    judged_differently: int
    comparisons: tuple[Comparison, ...]
    warnings: tuple[str, ...]
    means: tuple[Mean, ...] = ()

    @property
    def failed(self) -> tuple[Comparison, ...]:
        """The comparisons that fail; none without `fail_below`."""
        limit = self.question.fail_below
        if limit is None:
            return ()
        return tuple(comparison for comparison in self.comparisons if comparison.fails(limit))

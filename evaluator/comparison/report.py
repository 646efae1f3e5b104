"""What is asked of a comparison, and what it answers."""

from dataclasses import dataclass

from evaluator.comparison.folder import Kind, ShownRow
from evaluator.comparison.paired import CONFIDENCE, RESAMPLES, Paired
from evaluator.core.types.records import SERVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the files. *rankers* and *measures* empty: all that there are.

    *fail_below*: a difference whose interval begins below it, or that has none, fails.
    """

    baseline: str = SERVED
    rankers: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    kind: Kind = "running"
    top: int = 10
    resamples: int = RESAMPLES
    confidence: float = CONFIDENCE
    seed: int = 0
    fail_below: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A query whose values differ: how it stood with the baseline, and with the ranker.

    `judged_differently`: its grades are not the same in both sources.
    """

    difference: float
    baseline_value: float
    ranker_value: float
    judged_differently: bool
    baseline_row: ShownRow
    ranker_row: ShownRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One ranker and measure against the baseline.

    `paired` is None without a query that both have a value for. `only_baseline` and `only_ranker`
    count the queries with a value on one side alone. `changes` are those that changed most.
    """

    ranker: str
    measure: str
    paired: Paired | None
    only_baseline: int
    only_ranker: int
    changes: tuple[Change, ...]

    @property
    def verdict(self) -> str:
        """`better` or `worse` if the interval leaves out 0, `same` if no query differs."""
        if self.paired is None or self.paired.interval is None:
            return "unclear"
        if not self.paired.wins + self.paired.losses:
            return "same"
        if self.paired.interval.low > 0:
            return "better"
        return "worse" if self.paired.interval.high < 0 else "unclear"

    def fails(self, fail_below: float) -> bool:
        """Whether the difference may be below *fail_below*, for all that is known."""
        if self.paired is None or self.paired.interval is None:
            return True
        return self.paired.interval.low < fail_below


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What the report says of a source: rows read, and what identifies the replay, if known."""

    rows: int
    chain: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer.

    `common` counts queries that are in every source, with or without values, and
    `judged_differently` those of them whose grades differ. `warnings` are sentences.
    """

    question: Question
    sources: tuple[SourceFacts, ...]
    common: int
    judged_differently: int
    comparisons: tuple[Comparison, ...]
    warnings: tuple[str, ...]

    @property
    def failed(self) -> tuple[Comparison, ...]:
        """The comparisons that fail what was asked; none if nothing was."""
        limit = self.question.fail_below
        if limit is None:
            return ()
        return tuple(comparison for comparison in self.comparisons if comparison.fails(limit))

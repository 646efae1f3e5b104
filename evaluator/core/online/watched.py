"""Watched series: their names and declarations, and operator commands."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from evaluator.core.alarms.rules import AlarmRules, Kind
from evaluator.core.measures import MeasureSet

COVERAGE: Final = "coverage"
"""The measure of the series of judged shares; silence that counts as a grade is not a judgment."""


class SeriesName(NamedTuple):
    """The labels of a series.

    Of a pair, the ranker is `served-bm25`; of two variants, the variant is `canary-prod`.
    """

    model: str
    variant: str
    ranker: str
    measure: str
    segment: str
    level: str
    kind: Kind


class AlarmCommand(NamedTuple):
    """An operator command. Empty members of *series* are any; *applied_ms* is the end of a tick."""

    id: str
    action: Literal["acknowledge", "accept", "exclude"]
    series: Mapping[str, str]
    from_ms: int = 0
    to_ms: int = 0
    applied_ms: int = 0

    def is_for(self, name: SeriesName) -> bool:
        """Whether the command names this series."""
        return all(getattr(name, label) == value for label, value in self.series.items())


class Template(NamedTuple):
    """A declared series of each model and variant; the difference of two *rankers* for a pair.

    With *variants* it is one series of each model, of queries of both.
    """

    ranker: str
    measure: str
    rankers: tuple[str, ...]
    segment: str = ""
    level: str = ""
    kind: Kind = "own"
    variants: tuple[str, ...] = ()

    def name(self, model: str, variant: str) -> SeriesName:
        """The series of queries of a model and variant."""
        variant = "-".join(self.variants) or variant
        at = self.ranker, self.measure, self.segment, self.level
        return SeriesName(model, variant, *at, self.kind)

    def is_for(self, variant: str, levels: Mapping[str, str | None]) -> bool:
        """Whether queries of a variant, with these levels by segment, may be of the series."""
        if self.variants and variant not in self.variants:
            return False
        return not self.segment or levels.get(self.segment) == self.level


class WatchRules(Struct, frozen=True, kw_only=True):
    """The rules of the watch. Measures have canonical names.

    Args:
        alarms: the rules of each series.
        measures, rankers, levels: each ranker and measure has a series, and one for each level.
        pairs: two rankers whose difference is watched.
        variants: two variants; the first is compared with the same hours of the second.
        objectives: the lowest accepted mean of a measure of the served order.
        maturity_ms: age at which queries settle.
        unbounded: measures with values outside of [0, 1].
    """

    alarms: AlarmRules
    measures: tuple[str, ...]
    rankers: tuple[str, ...] = ("served",)
    levels: tuple[tuple[str, str], ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    variants: tuple[tuple[str, str], ...] = ()
    objectives: tuple[tuple[str, float], ...] = ()
    maturity_ms: int = 0
    unbounded: frozenset[str] = frozenset()

    def watched(self, measures: MeasureSet) -> dict[str, str]:
        """The canonical names of the measures that have a series, by spelling."""
        named = {name: measures.canonical_of(name) for name in measures.columns}
        with_series = {*self.measures, *dict(self.objectives)}
        return {name: canonical for name, canonical in named.items() if canonical in with_series}

    def columns(self) -> list[tuple[str, str]]:
        """Ranker and canonical measure of all values that the series need."""
        templates = self.templates()
        return list(dict.fromkeys((of, each.measure) for each in templates for of in each.rankers))

    def templates(self) -> list[Template]:
        """The series of a model and variant, in the order in which they are declared."""
        found = []
        for measure in self.measures:
            for ranker in self.rankers:
                found.append(Template(ranker, measure, (ranker,)))
                found += [Template(ranker, measure, (ranker,), *at) for at in self.levels]
            for pair in self.pairs:
                found.append(Template("-".join(pair), measure, pair, kind="pair"))
            found += [
                Template(ranker, measure, (ranker,), kind="variants", variants=variants)
                for variants in self.variants
                for ranker in self.rankers
            ]
        for measure, _ in self.objectives:
            found.append(Template("served", measure, ("served",), kind="constant"))
        return [*found, Template("", COVERAGE, ())]

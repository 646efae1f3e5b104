"""The rules of the online learner."""

from typing import Literal

from msgspec import Struct, field

from evaluator.core.features import Embedder, HashedNgrams, Remembered
from evaluator.core.learning.learner import Learner
from evaluator.core.learning.optimisers import Numbers
from evaluator.core.learning.transforms import Transforms
from evaluator.core.online.offline_ranking import OfflineRanking
from evaluator.core.promotion.gate import GateRules
from evaluator.core.promotion.source_weights import SourceWeights


class Rules(Struct, frozen=True, kw_only=True):
    """The rules of learning and promotion.

    Args:
        mode: "auto" promotes; "propose" only publishes proposals.
        learner, batch_queries, initial_weights: as in `fit`. Initial weights are the first
            champion; without any, the served order takes its place until weights are promoted.
        gate: measures by the spellings of `offline_ranking`.
        offline_ranking: measures weights.
        source_weights: the weight of judgments by source; None: all have the same.
        implicit_sources: with "auto" a query that these have judged needs propensities.
        learning_interval_ms: event-time length of a learning interval.
        embedder: computes features of described queries.
        transforms: of features, before weights are learned; of names that no query has, none.
    """

    mode: Literal["propose", "auto"]
    learner: Learner
    batch_queries: int
    gate: GateRules
    offline_ranking: OfflineRanking
    learning_interval_ms: int
    source_weights: SourceWeights | None = None
    implicit_sources: frozenset[str] = frozenset()
    initial_weights: Numbers = ()
    embedder: Embedder = field(default_factory=lambda: Remembered(HashedNgrams()))
    transforms: Transforms = field(default_factory=dict)

    def group_of(self, source: str) -> str:
        return source if self.source_weights is None else self.source_weights.group(source)

    def may_have(self, names: tuple[str, ...]) -> bool:
        """Whether initial weights, if there are any, can be for these features."""
        return len(self.initial_weights) in {0, len(names)}

    @property
    def max_grade(self) -> int:
        """The grade that counts fully in success rates, as in `map_graded`."""
        return self.offline_ranking.measures.scales.map_graded_max_grade

    @property
    def measures(self) -> tuple[str, ...]:
        """The measure of the gate, and the guardrails."""
        return (self.gate.measure, *sorted(self.gate.tolerances))

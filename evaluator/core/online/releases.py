"""Rules of the leader, versions of weights, operator commands and releases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from evaluator.core.features import Embedder, HashedNgrams, History, Remembered, shortened
from evaluator.core.learning.learner import Learner
from evaluator.core.learning.optimisers import Numbers
from evaluator.core.online.offline_ranking import OfflineRanking
from evaluator.core.promotion.gate import GateRules
from evaluator.core.promotion.source_weights import SourceWeights

CHAMPION: Final = "champion"
CHALLENGER: Final = "challenger"

Mode = Literal["propose", "auto"]
Status = Literal[
    "initial", "challenger", "proposed", "promoted", "rejected", "frozen", "rolled_back"
]
LIVE: Final[tuple[Status, ...]] = ("initial", "promoted", "rolled_back")
"""Records of weights that are to be used from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of learning and promotion.

    Args:
        mode: "auto" promotes; "propose" only publishes that it would.
        learner, batch_queries, initial_weights: as of `fit`. Initial weights are the first
            champion; without any, the served order takes its place until weights are promoted.
        gate: measures by the spellings of `offline_ranking`.
        offline_ranking: what measures weights.
        source_weights: the weight of judgments by source; None: all have the same.
        learning_interval_ms: event-time length of a learning interval.
        embedder: what features of described queries are made with.
    """

    mode: Mode
    learner: Learner
    batch_queries: int
    gate: GateRules
    offline_ranking: OfflineRanking
    learning_interval_ms: int
    source_weights: SourceWeights | None = None
    initial_weights: Numbers = ()
    embedder: Embedder = field(default_factory=lambda: Remembered(HashedNgrams()))

    def group_of(self, source: str) -> str:
        """The source group of a source: itself, or by `source_weights`."""
        return source if self.source_weights is None else self.source_weights.group(source)

    @property
    def max_grade(self) -> int:
        """The grade that counts fully for success rates, as it does in `map_graded`."""
        return self.offline_ranking.measures.scales.map_graded_max_grade

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures of bets and guardrails."""
        return (self.gate.measure, *sorted(self.gate.tolerances))


class Version(NamedTuple):
    """Weights in force for rankings with an event time of *from_ms* or later.

    *history* is the table that features of described queries are made with; None: nothing is known.
    """

    number: int
    from_ms: int
    weights: Numbers
    feature_names: tuple[str, ...]
    history: History | None = None

    def state(self) -> list[Any]:
        """As JSON keeps it exactly."""
        return [*self[:-1], None if self.history is None else self.history.state()]

    def with_table_of(self, max_bytes: int) -> "Version":
        """The same with a table that is no larger."""
        table = self.history
        return self._replace(history=None if table is None else shortened(table, max_bytes))

    @classmethod
    def of(cls, state: Sequence[Any]) -> "Version":
        number, from_ms, weights, names, history = state
        table = None if history is None else History.from_state(history)
        return cls(number, from_ms, tuple(map(float, weights)), tuple(names), table)


class Command(NamedTuple):
    """An operator command for one model. It is executed once: `number` grows with each.

    "freeze" ends learning and experiments; "roll_back" begins a new epoch with these weights.
    """

    number: int
    action: Literal["freeze", "roll_back"]
    reason: str
    weights: Numbers = ()
    feature_names: tuple[str, ...] = ()
    history: History | None = None


class Release(NamedTuple):
    """A record of a model's weights. *of_version* is the version whose experiment it ends."""

    status: Status
    model: str
    epoch: int
    version: int
    of_version: int
    weights: Numbers
    feature_names: tuple[str, ...]
    scale: Numbers | None
    updates: int
    from_ms: int
    ranges: Mapping[int, tuple[int, int]]
    evidence: Mapping[str, Any] | None
    reason: str
    history: History | None


Sums = Mapping[str, Mapping[str, tuple[int, int]]]


class ModelView(NamedTuple):
    """The public view of one model, as of the end of an interval.

    Evidence is 1 without an experiment; `evidence_needed` decides one. `sums` are, by ranker
    (champion and challenger) and measure, queries and their values in units of 2^-40: in total, and
    in `sums_before` up to the start of this leader. `loss` is the mean of the last
    interval in which something was learned.
    """

    model: str
    epoch: int
    version: int
    champion: Version | None
    challenger: Version | None
    updates: int
    frozen: str
    evidence_for: float
    evidence_against: float
    n_traces: int
    evidence_needed: float
    sums: Sums
    sums_before: Sums = MappingProxyType({})
    loss: float | None = None

"""Versions of weights, operator commands, releases, and the public view of the leader."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, field

from evaluator.core.features import SuccessTable, shortened
from evaluator.core.learning.optimisers import Numbers
from evaluator.core.learning.transforms import NO_TRANSFORMS, Transforms, documents, loaded
from evaluator.core.online.alarm_watch import AlarmsView

MOST_MODELS: Final = 16
"""Models with a model learner; queries of further models are counted and ignored."""

CHAMPION: Final = "champion"
CHALLENGER: Final = "challenger"

Status = Literal[
    "initial", "challenger", "proposed", "promoted", "rejected", "frozen", "rolled_back"
]
LIVE: Final[tuple[Status, ...]] = ("initial", "promoted", "rolled_back")
"""Statuses of weights that are live from then on."""


class Version(NamedTuple):
    """Weights in force for rankings with an event time of *from_ms* or later.

    *history* is the table for features of described queries; None: the prior success rate.
    *transforms* are of the features, which the weights apply to after them.
    """

    number: int
    from_ms: int
    weights: Numbers
    feature_names: tuple[str, ...]
    history: SuccessTable | None = None
    transforms: Transforms = NO_TRANSFORMS

    def state(self) -> list[Any]:
        """Everything, as JSON stores it exactly; transforms only if there are any."""
        table = None if self.history is None else self.history.state()
        return [*self[:4], table, *([documents(self.transforms)] if self.transforms else [])]

    def with_table_of(self, max_bytes: int) -> "Version":
        """The same weights with a smaller table."""
        table = self.history
        return self._replace(history=None if table is None else shortened(table, max_bytes))

    @classmethod
    def load(cls, state: Sequence[Any]) -> "Version":
        number, from_ms, weights, names, history, *transforms = state
        table = None if history is None else SuccessTable.load(history)
        of_features = loaded(transforms[0]) if transforms else NO_TRANSFORMS
        return cls(number, from_ms, tuple(map(float, weights)), tuple(names), table, of_features)


class Command(NamedTuple):
    """An operator command for one model. It is executed once: `number` grows with each.

    "freeze" ends learning and experiments; "roll_back" begins a new epoch with these weights.
    """

    number: int
    action: Literal["freeze", "roll_back"]
    reason: str
    weights: Numbers = ()
    feature_names: tuple[str, ...] = ()
    history: SuccessTable | None = None
    transforms: Transforms = NO_TRANSFORMS


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
    history: SuccessTable | None
    transforms: Transforms = NO_TRANSFORMS


class ModelView(NamedTuple):
    """The public view of one model, as of the end of an interval.

    Evidence is 1 without an experiment; `evidence_needed` decides one. `loss` is the mean of the
    last interval in which a group counted, `unusable` the queries that could not be learned from by
    reason, and `unusable_share` their share of the last queries,
    `last_experiment` the challenger, status and reason of the last experiment that has ended,
    `unknown_transforms` the features of `feature_transforms` that no model has.
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
    loss: float | None = None
    unusable: Mapping[str, int] = MappingProxyType({})
    unusable_share: float = 0.0
    last_experiment: tuple[int, str, str] | None = None
    unknown_transforms: tuple[str, ...] = ()


class LeaderView(Struct, frozen=True):
    """The public view of a leader, as of the end of its last interval; immutable.

    `awaited` are the tasks that block the others, `n_buffered` counts settled queries that were
    read but not processed, and `now_ms` is the settled time of the last query of the last interval.
    `counts` are of this process: ("records", outcome), ("releases", model, status), and ("values",
    ...) of published intervals, by the paths of `OnlineLearner.sums`.
    """

    is_leader: bool = False
    n_tasks: int = 0
    awaited: tuple[int, ...] = ()
    n_buffered: int = 0
    n_ignored: int = 0
    now_ms: int | None = None
    models: tuple[ModelView, ...] = ()
    alarms: AlarmsView = field(default_factory=AlarmsView)
    counts: Mapping[tuple[str, ...], int] = field(default_factory=dict)

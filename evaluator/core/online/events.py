"""Versions of weights, operator commands, and releases."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from evaluator.core.features import SuccessTable, shortened
from evaluator.core.learning.optimisers import Numbers
from evaluator.core.learning.transforms import NO_TRANSFORMS, Transforms, documents, loaded

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

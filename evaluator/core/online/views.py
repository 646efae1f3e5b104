"""The public views of a leader: its alarms and its models."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct, field

from evaluator.core.alarms.alarm import Alarm
from evaluator.core.online.events import Version
from evaluator.core.online.watched import SeriesName

MAX_NAMED: Final = 20
"""Series beyond the limit that the view of alarms names."""


class AlarmView(Struct, frozen=True):
    """The public view of one series, as of the last closed tick.

    `n_windows` are those with enough queries; without a reference, `reference_from_ms` is when it
    is expected. `spreads` are the standard deviations of the means of WINDOWS in the reference,
    without chance; () without past weeks. `day` is the mean of the last day, its expected value,
    and the standard deviation of their difference; None if it cannot be compared.
    """

    series: SeriesName
    evidence: float
    alarm: Alarm | None
    weeks: tuple[int, ...]
    unverifiable: str = ""
    n_windows: int = 0
    reference_from_ms: int | None = None
    spreads: tuple[float, ...] = ()
    day: tuple[float, float, float] | None = None


class AlarmsView(Struct, frozen=True):
    """The public view of all series; *tick_end_ms* is the end of the last closed tick.

    `left_out` are the first MAX_NAMED series beyond the limit.
    """

    series: tuple[AlarmView, ...] = ()
    n_left_out: int = 0
    tick_end_ms: int | None = None
    left_out: tuple[SeriesName, ...] = ()


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

"""Metric families of a snapshot and of a mapper, for Prometheus. Every name: docs/metrics.md."""

import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from math import inf
from operator import attrgetter
from typing import Any, Final, get_args

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from evaluator.adapters.prometheus.quality import QualitySeries, Samples
from evaluator.core.event_time.clock import seconds_of
from evaluator.core.measures.exact_sums import DELAY_BOUNDS_SECONDS
from evaluator.core.online.events import CHALLENGER, CHAMPION, MOST_MODELS, Status
from evaluator.core.online.views import AlarmsView, LeaderView, ModelView
from evaluator.core.types.records import LOGS, OTHER
from evaluator.core.types.segments import NO_SEGMENTS, SegmentRules
from evaluator.core.types.tally import Path
from evaluator.exposition.alarm_sentence import MAX_CARRIERS, carrier_text
from evaluator.exposition.label_limits import LabelLimits, series_beside
from evaluator.exposition.series import FINAL_OUTCOMES, SPECS, clean
from evaluator.exposition.snapshot import Resources, Snapshot, TaskView
from evaluator.ports import InputHealth, Side
from evaluator.wire.outputs.encoding import DEAD_LETTER_REASONS

MOST_FEATURES: Final = 64
"""Number of features of a model with series: the first ones by position."""
UNKNOWN_HEALTH: Final = InputHealth(0)
_FAMILIES: Final[Mapping[str, Callable[..., Any]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}

Series = dict[str, Samples]
"""Samples by name in SPECS."""


def families(
    snapshot: Snapshot,
    quality: QualitySeries,
    *,
    ready: bool,
    version: str,
    health: InputHealth = UNKNOWN_HEALTH,
    leader: LeaderView | None = None,
    resources: Resources = Resources(),  # noqa: B008  # it is immutable
    links: tuple[str, str] = ("", ""),
) -> Iterator[Metric]:
    """Every metric family for one snapshot, in the order of SPECS.

    Counters come from `snapshot.counters`, gauges from its tasks, state of the inputs from
    *health*, learning from *leader*.
    """
    series: Series = {
        **quality.series(snapshot, {} if leader is None else leader.counts),
        **_counted_series(snapshot.counters.groups.get((), {})),
        **_task_series(snapshot),
        **_input_series(snapshot, health),
        **_process_series(snapshot),
        # No disk is as large as 2^63 bytes, and no float holds every setting.
        **{
            f"{name}_bytes": _optional(None if figure is None else min(figure, 1 << 63))
            for name, figure in resources._asdict().items()
        },
        **_own_series(ready, version),
        "links_info": [(links, 1)] if any(links) else [],
        **({} if leader is None else _leader_series(leader)),
    }
    return families_of(series)


def families_of(series: Series) -> Iterator[Metric]:
    """The families of samples, in the order of SPECS."""
    for name, spec in SPECS.items():
        if name in series:
            family = _FAMILIES[spec.kind](spec.name, spec.meaning, labels=spec.labels)
            for labels, *values in series[name]:
                family.add_metric(labels, *values)
            yield family


@dataclass(eq=False)
class EvaluatorCollector(Collector):
    """`families` at every scrape. A scrape sees one snapshot, hence whole batches only.

    With `figures`, the result of `read` in the thread that changes them, another thread may scrape.
    """

    snapshot: Callable[[], Snapshot]
    _: KW_ONLY
    ready: Callable[[], bool]
    version: str
    histograms: Collection[str] = ()
    health: Callable[[], InputHealth] = lambda: UNKNOWN_HEALTH
    leader: Callable[[], LeaderView | None] = lambda: None
    resources: Callable[[], Resources] = Resources
    segments: SegmentRules = NO_SEGMENTS
    links: tuple[str, str] = ("", "")  # addresses of the runbooks, and of the dashboards

    def __post_init__(self) -> None:
        limits = LabelLimits(max_series=series_beside(self.segments.names))
        self._quality = QualitySeries(limits, histograms=self.histograms, segments=self.segments)
        self.figures: Mapping[str, Any] | None = None

    def read(self) -> dict[str, Any]:
        """The figures of a scrape as of now; they are immutable."""
        return {
            "snapshot": self.snapshot(),
            "ready": self.ready(),
            "health": self.health(),
            "leader": self.leader(),
            "resources": self.resources(),
        }

    def collect(self) -> Iterator[Metric]:
        """The families of `figures`, else as of now."""
        figures = self.read() if self.figures is None else self.figures
        return families(quality=self._quality, version=self.version, links=self.links, **figures)


@dataclass(eq=False)
class MapperCollector(Collector):
    """The metrics of `evaluator map`; `figures` are samples by name in SPECS."""

    figures: Callable[[], Series]
    ready: Callable[[], bool]
    version: str

    def collect(self) -> Iterator[Metric]:
        """The families as of now."""
        return families_of({**self.figures(), **_own_series(self.ready(), self.version)})


def registry_of(collector: Collector) -> CollectorRegistry:
    """The collector together with the metrics of the process and of Python."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Body and content type of a scrape: OpenMetrics if *accept* asks for it, else text."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # of a version that is not digits and points
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


def _own_series(ready: bool, version: str) -> Series:
    return {
        "ready": [((), int(ready))],
        "build_info": [((version, platform.python_version()), 1)],
    }


def _optional(figure: float | None) -> Samples:
    return [] if figure is None else [((), figure)]


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else seconds_of(ms)


# --- records, tasks, inputs, the process -----------------------------------------------------


def _counted_series(counters: Mapping[Path, int]) -> Series:
    letters = {key[1]: n for key, n in counters.items() if key[0] == "dead_letters"}
    letters = dict.fromkeys(DEAD_LETTER_REASONS, 0) | letters
    so_far, buckets = 0, []
    for index, bound in enumerate([*map(str, map(float, DELAY_BOUNDS_SECONDS)), "+Inf"]):
        so_far += counters.get(("delay", str(index)), 0)
        buckets.append((bound, so_far))
    return {
        "messages": _messages(counters),
        "dead_letters": [((reason,), n) for reason, n in letters.items()],
        "out_of_order": [((), counters.get(("extra", "out_of_order"), 0))],
        "timestamps_in_seconds": [
            ((log,), counters.get(("timestamps_in_seconds", log), 0)) for log in LOGS
        ],
        "queries_nothing_relevant": [((), counters.get(("extra", "nothing_relevant"), 0))],
        "judgment_delay_seconds": [((), buckets, counters.get(("delay_sum_ms",), 0) / 1000)],
    }


def _messages(counters: Mapping[Path, int]) -> Samples:
    for topic, outcomes in FINAL_OUTCOMES.items():
        for outcome in outcomes:
            # A ranking that started a query is open first and expired later.
            parts = ("open", "expired") if outcome == "started" else (outcome,)
            yield (topic, outcome), sum(counters.get((topic, part), 0) for part in parts)


def _task_series(snapshot: Snapshot) -> Series:
    def by_task(figure: Callable[[TaskView], float | None]) -> Samples:
        figures = ((str(view.task), figure(view)) for view in snapshot)
        return [((task,), value) for task, value in figures if value is not None]

    return {
        **{
            name: by_task(attrgetter(name))
            for name in ("checkpoint_bytes", "state_bytes", "memory_tier_bytes", "restore_left")
        },
        "open_queries": [((), sum(view.n_open for view in snapshot))],
        "early_judgments": [((), sum(view.n_early for view in snapshot))],
        "watermark_timestamp_seconds": by_task(lambda view: _seconds(view.watermark_ms)),
        "tasks_owned": [((), len(snapshot.tasks))],
        "restoring": [((), sum(view.restoring for view in snapshot))],
        "checkpoint_timestamp_seconds": by_task(lambda view: _seconds(view.checkpoint_ms)),
    }


def _input_series(snapshot: Snapshot, health: InputHealth) -> Series:
    positions = {
        (log, str(view.task)): (view.positions[log], view.end_offsets.get(log))
        for view in snapshot
        for log in LOGS
        if log in view.positions
    }
    ahead = snapshot.clocks_ahead_ms()
    return {
        "consumer_lag": [
            (path, max(0, end - at)) for path, (at, end) in positions.items() if end is not None
        ],
        "input_position": [(path, at) for path, (at, _) in positions.items()],
        "input_retention_seconds": [
            ((log,), inf if ms is None else seconds_of(ms))
            for log, ms in health.retention_ms.items()
        ],
        "input_retention_needed_seconds": _optional(_seconds(health.needed_ms or None)),
        "input_positions_outside": [
            ((log, side), health.outside.get((log, side), 0))
            for log in LOGS
            for side in get_args(Side)
        ],
        "input_records_lost": [((log,), health.lost.get(log, 0)) for log in LOGS],
        "clock_skew_seconds": _optional(_seconds(snapshot.skew_ms)),
        "input_clock_ahead_seconds": [
            ((log, str(task)), ms / 1000) for (log, task), ms in ahead.items()
        ],
    }


def _process_series(snapshot: Snapshot) -> Series:
    counts = snapshot.process_counts
    stored = [((str(task),), each) for task, each in snapshot.store_snapshots.items()]
    return {
        **{
            name: [(key[1:], n) for key, n in counts.items() if key[0] == name]
            for name in ("quarantined_stores", "snapshot_failures", "snapshot_bytes")
        },
        "snapshot_timestamp_seconds": [(path, each.written_ms / 1000) for path, each in stored],
        "snapshot_size_bytes": [(path, each.n_bytes) for path, each in stored],
        "rebalances": [((), counts.get(("rebalances",), 0))],
        "commits": [
            ((outcome,), counts.get(("commits", outcome), 0))
            for outcome in ("committed", "refused")
        ],
        "last_commit_timestamp_seconds": _optional(_seconds(snapshot.last_commit_ms)),
    }


# --- the leader; most of its series exist only in the process that leads ---------------------


def _leader_series(view: LeaderView) -> dict[str, Samples]:
    """Samples of every series of the leader but the values of its weights, by name in SPECS."""
    counts, models = view.counts, {clean(model.model): model for model in view.models}
    versions = {
        (name, ranker): version
        for name, model in models.items()
        for ranker, version in ((CHAMPION, model.champion), (CHALLENGER, model.challenger))
        if version is not None
    }
    weights = {
        (*path, clean(feature)): weight
        for path, version in versions.items()
        for feature, weight in [*zip(version.feature_names, version.weights, strict=True)][
            :MOST_FEATURES
        ]
    }

    def by_model(figure: Callable[[ModelView], float | None]) -> Samples:
        figures = ((name, figure(model)) for name, model in models.items())
        return [((name,), value) for name, value in figures if value is not None]

    def of_leader(value: int) -> Samples:
        return [((), value)] if view.is_leader else []

    return {
        "leader_active": [((), int(view.is_leader))],
        "leader_epochs": [((), counts.get(("leader_epochs",), 0))],
        "leader_gaps": [((), counts.get(("gaps",), 0))],
        "leader_records": [(key[1:], n) for key, n in counts.items() if key[0] == "records"],
        "leader_awaited": [
            ((str(task),), int(task in view.awaited))
            for task in range(view.n_tasks if view.is_leader else 0)
        ],
        "leader_buffered_queries": of_leader(view.n_buffered),
        "leader_ignored_queries": of_leader(view.n_ignored),
        "leader_interval_timestamp_seconds": _optional(_seconds(view.now_ms)),
        "weights_releases": _releases(view),
        "weights_epoch": by_model(lambda model: model.epoch),
        "weights_last_version": by_model(lambda model: model.version),
        "weights_version": [(path, version.number) for path, version in versions.items()],
        "weights_value": weights.items(),
        "learning_updates": by_model(lambda model: model.updates),
        "learning_loss": by_model(lambda model: model.loss),
        "learning_frozen": by_model(lambda model: int(bool(model.frozen))),
        "learning_unusable_queries": [
            ((name, reason), n)
            for name, model in models.items()
            for reason, n in model.unusable.items()
        ],
        "learning_unusable_share": by_model(lambda model: model.unusable_share),
        "experiment_evidence": [
            ((name, side), evidence)
            for name, model in models.items()
            for side, evidence in (("for", model.evidence_for), ("against", model.evidence_against))
        ],
        "experiment_evidence_needed": by_model(lambda model: model.evidence_needed),
        "experiment_traces": by_model(lambda model: model.n_traces),
        **_alarm_series(view.alarms),
    }


def _alarm_series(view: AlarmsView) -> dict[str, Samples]:
    """Samples of the watched series, by name in SPECS."""
    series = [(tuple(map(clean, each.series)), each) for each in view.series]
    on = [(labels, each.alarm) for labels, each in series if each.alarm is not None]
    days = [(labels, each.day) for labels, each in series if each.day is not None]
    return {
        "alarm_active": [(labels, int(each.alarm is not None)) for labels, each in series],
        "alarm_acknowledged": [
            (labels, int(each.alarm is not None and each.alarm.acknowledged))
            for labels, each in series
        ],
        "alarm_evidence_ratio": [(labels, each.evidence) for labels, each in series],
        "alarm_since_timestamp_seconds": [(labels, alarm.since_ms / 1000) for labels, alarm in on],
        "alarm_observed_mean": [(labels, alarm.observed) for labels, alarm in on],
        "alarm_expected_mean": [(labels, alarm.expected) for labels, alarm in on],
        "alarm_day_mean": [(labels, day[0]) for labels, day in days],
        "alarm_day_expected_mean": [(labels, day[1]) for labels, day in days],
        "alarm_day_spread": [(labels, day[2]) for labels, day in days],
        "alarm_reference_weeks": [(labels, len(each.weeks)) for labels, each in series],
        "alarm_carried_share": [
            ((*labels, clean(carrier_text(of))), of.share)
            for labels, alarm in on
            for of in alarm.carried_by[:MAX_CARRIERS]
        ],
        "alarm_usable_windows": [(labels, each.n_windows) for labels, each in series],
        "alarm_reference_timestamp_seconds": [
            (labels, each.reference_from_ms / 1000)
            for labels, each in series
            if each.reference_from_ms is not None
        ],
        "alarm_series_left_out": [((), view.n_left_out)] if view.tick_end_ms else [],
        "alarm_tick_timestamp_seconds": _optional(_seconds(view.tick_end_ms)),
    }


def _releases(view: LeaderView) -> Samples:
    """Releases by model, for the first models of this process; all others in one series."""
    releases = [
        (clean(key[1]), key[2], n) for key, n in view.counts.items() if key[0] == "releases"
    ]
    models = [*(name for name, _, _ in releases), *(model.model for model in view.models)]
    shown = {clean(name) for name in list(dict.fromkeys(models))[:MOST_MODELS]}
    counts = {(name, status): 0 for name in shown for status in get_args(Status)}
    for name, status, n in releases:
        path = (name if name in shown else OTHER, status)
        counts[path] = counts.get(path, 0) + n
    return counts.items()

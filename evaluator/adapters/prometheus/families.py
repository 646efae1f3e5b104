"""What Prometheus sees: a snapshot in, metric families out. Every name: docs/metrics.md.

`families` is a function of a snapshot and of the slots that the series of a (model, variant)
pair keep; the collector is that function, bound to the callables that give both.
"""

import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import get_args

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from evaluator.adapters.prometheus.clocks import clock_families
from evaluator.adapters.prometheus.leader import Published, Ranked, leader_families
from evaluator.adapters.prometheus.made import Samples, family
from evaluator.adapters.prometheus.room import Room, room_families
from evaluator.core.event_time.clock import seconds_of
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import DELAY_BOUNDS_SECONDS
from evaluator.core.online.online_learner import LeaderView
from evaluator.core.types.records import LOGS, VALUE_BOUNDS, Snapshot, Tally, TaskView
from evaluator.exposition.label_limits import Block, Pair, SeriesSlots, series_of_block
from evaluator.exposition.series import (
    BUILD,
    CHECKPOINT,
    CHECKPOINT_BYTES,
    COMMITS,
    DEAD_LETTERS,
    DELAY,
    EARLY_JUDGMENTS,
    FINAL_OUTCOMES,
    IN_SECONDS,
    LAG,
    LAST_COMMIT,
    LOST,
    MEMORY_TIER_BYTES,
    MESSAGES,
    NEEDED,
    NOTHING_RELEVANT,
    OPEN_QUERIES,
    OUT_OF_ORDER,
    OUTSIDE,
    POSITION,
    QUARANTINED_STORES,
    QUERIES,
    READY,
    REBALANCES,
    RESTORE_LEFT,
    RESTORING,
    RETENTION,
    RUNNING,
    SCORE,
    SETTLED,
    SQUARES,
    STATE_BYTES,
    TASKS,
    VALUES,
    WATERMARK,
    clean,
)
from evaluator.ports import InputHealth, Side
from evaluator.wire.outputs.encoding import DEAD_LETTER_REASONS

UNKNOWN_HEALTH = InputHealth(0)
LONGEST_EXEMPLAR = 128 - len("trace_id")  # OpenMetrics: name and value together, in characters

Known = Mapping[tuple[Block, str], None]  # (block, measure), in order of first appearance
Bucket = tuple[str, float] | tuple[str, float, Exemplar]


@dataclass(slots=True)
class QualitySums:
    """Exact sums of one series' labels, in units of 2^-40."""

    queries: int = 0
    sum_units: int = 0
    square_units: int = 0

    def add(self, what: str, value: int) -> None:
        """Adds to the sum that is called *what* in a tally."""
        setattr(self, what, getattr(self, what) + value)


Quality = dict[tuple[str, ...], QualitySums]  # by MEASURED


def families(
    snapshot: Snapshot,
    slots: SeriesSlots,
    *,
    ready: bool,
    version: str,
    histograms: Collection[str] = (),
    health: InputHealth = UNKNOWN_HEALTH,
    leader: LeaderView | None = None,
    published: Mapping[Ranked, tuple[int, int]] = MappingProxyType({}),
    room: Room = Room(),  # noqa: B008  # it cannot be changed
) -> Iterator[Metric]:
    """Every metric family of the evaluator for one snapshot, in the order of SPECS.

    Counters come from `snapshot.counters`, gauges from its tasks, what is known of the inputs
    beside their records from *health*, what is learned from *leader*, and how its weights rank
    from *published*. *slots* remembers the pairs that it sees; nothing else is changed.
    """
    counters = snapshot.counters
    known = dict.fromkeys(_known(snapshot))
    learned = _learned(published, known, slots, histograms)
    yield from _quality_families(snapshot, known, slots, histograms, learned)
    yield family(SETTLED, _settled_queries(counters, known, slots))
    yield family(MESSAGES, _messages(counters))
    yield family(DEAD_LETTERS, _dead_letters(counters))
    yield family(OUT_OF_ORDER, [((), counters.get(("extra", "out_of_order"), 0))])
    yield family(IN_SECONDS, _in_seconds(counters))
    yield family(NOTHING_RELEVANT, [((), counters.get(("extra", "nothing_relevant"), 0))])
    yield family(OPEN_QUERIES, [((), sum(view.n_open for view in snapshot))])
    yield family(EARLY_JUDGMENTS, [((), sum(view.n_early for view in snapshot))])
    yield _delay(counters)
    yield family(WATERMARK, _watermarks(snapshot))
    yield family(LAG, _lags(snapshot))
    yield family(POSITION, _positions(snapshot))
    yield from _health_families(health)
    yield from clock_families(snapshot)
    yield family(TASKS, [((), len(snapshot.tasks))])
    yield family(RESTORING, [((), sum(view.restoring for view in snapshot))])
    yield from _state_families(snapshot)
    yield family(LAST_COMMIT, _last_commit(snapshot))
    yield from room_families(room)
    yield family(READY, [((), int(ready))])
    yield family(BUILD, [((version, platform.python_version()), 1)])
    if leader is not None:
        yield from leader_families(leader)


class EvaluatorCollector(Collector):
    """`families` at every scrape. A scrape sees one snapshot, hence whole batches only."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        *,
        ready: Callable[[], bool],
        version: str,
        histograms: Collection[str] = (),
        health: Callable[[], InputHealth] = lambda: UNKNOWN_HEALTH,
        leader: Callable[[], LeaderView | None] = lambda: None,
        room: Callable[[], Room] = Room,
    ) -> None:
        self._health = health
        self._room = room
        self._leader = leader
        self._published = Published()
        self._snapshot = snapshot
        self._ready = ready
        self._version = version
        self._histograms = histograms
        self._slots = SeriesSlots()

    def collect(self) -> Iterator[Metric]:
        """The families as of now."""
        leader = self._leader()
        return families(
            self._snapshot(),
            self._slots,
            ready=self._ready(),
            version=self._version,
            histograms=self._histograms,
            health=self._health(),
            leader=leader,
            published={} if leader is None else self._published.sums(leader),
            room=self._room(),
        )


def _known(snapshot: Snapshot) -> Iterator[tuple[Block, str]]:
    """(block, measure) of everything that was ever ranked, as far as this process knows."""
    for key in snapshot.counters:
        if key[0] == "settled":
            yield (clean(key[1]), clean(key[2]), clean(key[3])), key[4]
    for view in snapshot:
        for key in view.tally:
            if key[0] == "running":
                yield (clean(key[1]), clean(key[2]), clean(key[3])), key[4]


def _learned(
    published: Mapping[Ranked, tuple[int, int]],
    known: Known,
    slots: SeriesSlots,
    histograms: Collection[str],
) -> Quality:
    """How weights rank; which variant they ranked for is not known."""
    paths = {path: (clean(path[0]), "", path[1]) for path in published}
    # With all measures, for the first block that is admitted says how much room one needs.
    _admit(
        dict.fromkeys((*known, *((paths[path], path[2]) for path in published))), slots, histograms
    )
    learned: Quality = {}
    for path, (queries, sum_units) in published.items():
        sums = learned.setdefault((*slots.labels(paths[path]), path[2]), QualitySums())
        sums.add("queries", queries)
        sums.add("sum_units", sum_units)
    return learned


def _admit(known: Known, slots: SeriesSlots, histograms: Collection[str]) -> None:
    rankers: dict[Pair, dict[str, None]] = {}
    measures = set()
    for (model, variant, ranker), measure in known:
        rankers.setdefault((model, variant), {})[ranker] = None
        measures.add(measure)
    slots.admit(rankers, series_per_block=series_of_block(measures, histograms))


def _quality_families(
    snapshot: Snapshot,
    known: Known,
    slots: SeriesSlots,
    histograms: Collection[str],
    learned: Quality,
) -> Iterator[Metric]:
    settled: Quality = {(*slots.labels(block), measure): QualitySums() for block, measure in known}
    _add_quality(settled, "settled", snapshot.counters, slots)
    running: Quality = {}
    for view in snapshot:
        _add_quality(running, "running", view.tally, slots)
    ranked = _together(settled, learned)
    yield family(SCORE, ((k, q.sum_units / UNITS_PER_ONE) for k, q in ranked.items()))
    yield family(QUERIES, ((k, q.queries) for k, q in ranked.items()))
    yield family(SQUARES, ((k, q.square_units / UNITS_PER_ONE) for k, q in settled.items()))
    means = (
        (k, q.sum_units / (q.queries * UNITS_PER_ONE)) for k, q in running.items() if q.queries
    )
    yield family(RUNNING, means)
    yield _values({k: q for k, q in settled.items() if k[-1] in histograms}, snapshot, slots)


def _together(settled: Quality, learned: Quality) -> Quality:
    """Both; the overflow may have sums of either."""
    both = dict(settled)
    for path, sums in learned.items():
        one = both.get(path, QualitySums())
        both[path] = QualitySums(one.queries + sums.queries, one.sum_units + sums.sum_units)
    return both


def _values(settled: Quality, snapshot: Snapshot, slots: SeriesSlots) -> Metric:
    """The buckets add up to what is settled, for they were counted with it."""
    made = HistogramMetricFamily(VALUES.name, VALUES.meaning, labels=VALUES.labels)
    counts: dict[tuple[str, ...], int] = {}
    examples: dict[tuple[str, ...], Exemplar] = {}
    for key, n in snapshot.counters.items():
        if key[0] == "bucket":
            labels = slots.labels((clean(key[1]), clean(key[2]), clean(key[3])))
            counts[*labels, *key[4:]] = counts.get((*labels, *key[4:]), 0) + n
            if key in snapshot.exemplars and len(snapshot.exemplars[key][0]) <= LONGEST_EXEMPLAR:
                trace_id, units = snapshot.exemplars[key]
                labelled = {"trace_id": clean(trace_id)}
                examples[*labels, *key[4:]] = Exemplar(labelled, units / UNITS_PER_ONE)
    for path, sums in settled.items():
        so_far, buckets = 0, list[Bucket]()
        for index, bound in enumerate(VALUE_BOUNDS):
            so_far += counts.get((*path, str(index)), 0)
            example = examples.get((*path, str(index)))
            bucket = (str(bound), so_far)
            buckets.append((*bucket, example) if example else bucket)
        buckets.append(("+Inf", so_far))
        made.add_metric(path, buckets, sums.sum_units / UNITS_PER_ONE)
    return made


def _add_quality(into: Quality, kind: str, tally: Tally, slots: SeriesSlots) -> None:
    for key, value in tally.items():
        if key[0] == kind:
            _, model, variant, ranker, measure, what = key
            labels = slots.labels((clean(model), clean(variant), clean(ranker)))
            into.setdefault((*labels, measure), QualitySums()).add(what, value)


def _settled_queries(counters: Tally, known: Known, slots: SeriesSlots) -> Samples:
    sums: dict[tuple[str, ...], int] = {}
    for (model, variant, _), _measure in known:
        for judged in ("yes", "no"):
            sums[(*slots.pair_labels((model, variant)), judged)] = 0
    for key, value in counters.items():
        if key[0] == "settled_queries":
            labels = (*slots.pair_labels((clean(key[1]), clean(key[2]))), key[3])
            sums[labels] = sums.get(labels, 0) + value
    return sums.items()


def _messages(counters: Tally) -> Samples:
    for topic, outcomes in FINAL_OUTCOMES.items():
        for outcome in outcomes:
            # A ranking that started a query is open first and expired later.
            parts = ("open", "expired") if outcome == "started" else (outcome,)
            yield (topic, outcome), sum(counters.get((topic, part), 0) for part in parts)


def _dead_letters(counters: Tally) -> Samples:
    counts = dict.fromkeys(DEAD_LETTER_REASONS, 0)
    for key, value in counters.items():
        if key[0] == "dead_letters":
            counts[key[1]] = value
    return (((reason,), value) for reason, value in counts.items())


def _in_seconds(counters: Tally) -> Samples:
    return (((log,), counters.get(("timestamps_in_seconds", log), 0)) for log in LOGS)


def _delay(counters: Tally) -> Metric:
    made = HistogramMetricFamily(DELAY.name, DELAY.meaning)
    so_far = 0
    buckets = []
    for index, bound in enumerate([*map(str, map(float, DELAY_BOUNDS_SECONDS)), "+Inf"]):
        so_far += counters.get(("delay", str(index)), 0)
        buckets.append((bound, so_far))
    made.add_metric([], buckets, counters.get(("delay_sum_ms",), 0) / 1000)
    return made


def _watermarks(snapshot: Snapshot) -> Samples:
    for view in snapshot:
        if view.watermark_ms is not None:
            yield (str(view.task),), seconds_of(view.watermark_ms)


def _lags(snapshot: Snapshot) -> Samples:
    for view in snapshot:
        for log in LOGS:
            end, position = view.end_offsets.get(log), view.positions.get(log)
            if end is not None and position is not None:
                yield (log, str(view.task)), max(0, end - position)


def _positions(snapshot: Snapshot) -> Samples:
    for view in snapshot:
        for log in LOGS:
            if log in view.positions:
                yield (log, str(view.task)), view.positions[log]


def _health_families(health: InputHealth) -> Iterator[Metric]:
    kept = ((log, inf if ms is None else seconds_of(ms)) for log, ms in health.retention_ms.items())
    yield family(RETENTION, (((log,), seconds) for log, seconds in kept))
    yield family(NEEDED, [((), seconds_of(health.needed_ms))] if health.needed_ms else [])
    sides = ((log, side) for log in LOGS for side in get_args(Side))
    yield family(OUTSIDE, ((pair, health.outside.get(pair, 0)) for pair in sides))
    yield family(LOST, (((log,), health.lost.get(log, 0)) for log in LOGS))


def _state_families(snapshot: Snapshot) -> Iterator[Metric]:
    """The families of durable state, in the order of SPECS; a task keeps those of counters."""
    counts = snapshot.process_counts
    checkpoints = (
        ((str(view.task),), view.checkpoint_ms / 1000)
        for view in snapshot
        if view.checkpoint_ms is not None
    )
    yield family(CHECKPOINT, checkpoints)
    yield family(CHECKPOINT_BYTES, _by_task(snapshot, lambda view: view.checkpoint_bytes))
    yield family(STATE_BYTES, _by_task(snapshot, lambda view: view.state_bytes))
    yield family(MEMORY_TIER_BYTES, _by_task(snapshot, lambda view: view.memory_tier_bytes))
    yield family(RESTORE_LEFT, _by_task(snapshot, lambda view: view.restore_left))
    yield family(
        QUARANTINED_STORES,
        ((key[1:], n) for key, n in counts.items() if key[0] == "quarantined_stores"),
    )
    yield family(REBALANCES, [((), counts.get(("rebalances",), 0))])
    yield family(
        COMMITS, (((each,), counts.get(("commits", each), 0)) for each in ("committed", "refused"))
    )


def _by_task(snapshot: Snapshot, figure: Callable[[TaskView], int]) -> Samples:
    return (((str(view.task),), figure(view)) for view in snapshot)


def _last_commit(snapshot: Snapshot) -> Samples:
    if snapshot.last_commit_ms is not None:
        yield (), snapshot.last_commit_ms / 1000

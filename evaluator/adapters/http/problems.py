"""Problems of a process, one sentence each, at the limits of the alerts.

An alert of Prometheus covers all workers and waits before it fires; a problem is one of this
process, at this moment. Both have the same name, severity and runbook.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from evaluator.adapters.http.status import ahead_warnings, skew_warnings
from evaluator.core.alarms.ticks import HOUR_MS
from evaluator.core.online.views import LeaderView
from evaluator.core.online.watched import COVERAGE
from evaluator.core.types.records import LOGS
from evaluator.core.types.tally import Path
from evaluator.exposition.alarm_sentence import alarm_sentence, alert_of
from evaluator.exposition.limits import limit
from evaluator.exposition.snapshot import Resources, Snapshot, TaskView

QUARTER_MS: Final = 900_000
STALL_MS: Final = 600_000
RECENT_STEP_MS: Final = 30_000
MAX_PROBLEMS_PER_ALERT: Final = 5
_UNCOUNTED: Final = ("heartbeat", "left_out")
_OWN_FIGURES: Final = ("orphan", "late")
"""Reasons of dead letters that are not in the share of dead letters."""


class Problem(NamedTuple):
    """A sentence; *alert* names the alert and its runbook."""

    alert: str
    severity: str
    text: str


class _Moment(NamedTuple):
    time_ms: int
    counts: Mapping[Path, int]
    watermarks_ms: Mapping[int, int | None]


class Recent:
    """Counts of the process and watermarks of the last hour, one sample every RECENT_STEP_MS."""

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque(maxlen=HOUR_MS // RECENT_STEP_MS + 1)

    def sample(self, snapshot: Snapshot, *, now_ms: int) -> None:
        """Keeps a snapshot if the last one is old enough."""
        if not self._moments or now_ms - self._moments[-1].time_ms >= RECENT_STEP_MS:
            counts = snapshot.counters.groups.get((), {})
            watermarks = {view.task: view.watermark_ms for view in snapshot}
            self._moments.append(_Moment(now_ms, counts, watermarks))

    def increase(self, snapshot: Snapshot, ms: int, *, now_ms: int) -> dict[Path, int]:
        """Increase of each count within the last *ms*; counts of a new process begin at 0."""
        before = self._before(ms, now_ms).counts
        counts = snapshot.counters.groups.get((), {})
        return {path: n - before.get(path, 0) for path, n in counts.items()}

    def is_stalled(self, view: TaskView, *, now_ms: int) -> bool:
        """Whether the watermark of a task is the same as STALL_MS ago."""
        then = self._before(STALL_MS, now_ms)
        return then.watermarks_ms.get(view.task, -1) == view.watermark_ms

    def was_old(self, view: TaskView, age_ms: float, *, now_ms: int) -> bool:
        """Whether the watermark of a task was older than *age_ms* STALL_MS ago, too."""
        then = self._before(STALL_MS, now_ms)
        before_ms = then.watermarks_ms.get(view.task)
        return before_ms is not None and then.time_ms - before_ms > age_ms

    def _before(self, ms: int, now_ms: int) -> _Moment:
        """The last sample that is at least *ms* old; an empty one if there is none."""
        past = [moment for moment in self._moments if moment.time_ms <= now_ms - ms]
        return past[-1] if past else _Moment(0, {}, {})


def problems_of(
    snapshot: Snapshot,
    recent: Recent,
    *,
    reasons: Sequence[str],
    resources: Resources,
    leader: LeaderView | None,
    now_ms: int,
    max_future_skew_ms: int,
) -> list[Problem]:
    """All problems, critical ones first; *reasons* are why the process is not ready."""
    found = [Problem("EvaluatorNotReady", "critical", reason) for reason in reasons]
    ahead = ahead_warnings(snapshot, max_future_skew_ms)
    found += [Problem("EvaluatorInputClockAhead", "critical", text) for text in ahead]
    found += [Problem("EvaluatorClockSkewed", "warning", text) for text in skew_warnings(snapshot)]
    found += _alarms(leader)
    found += _inputs(
        recent.increase(snapshot, HOUR_MS, now_ms=now_ms),
        recent.increase(snapshot, QUARTER_MS, now_ms=now_ms),
    )
    found += _tasks(snapshot, recent, now_ms)
    found += _room(snapshot, resources)
    kept: dict[str, list[Problem]] = {}
    for problem in found:
        kept.setdefault(problem.alert, []).append(problem)
    shown = [each for group in kept.values() for each in _cut(group)]
    return sorted(shown, key=lambda each: each.severity != "critical")


def _cut(group: list[Problem]) -> list[Problem]:
    if len(group) <= MAX_PROBLEMS_PER_ALERT:
        return group
    n_more = len(group) - MAX_PROBLEMS_PER_ALERT + 1
    more = group[0]._replace(text=f"The same of {n_more} more.")
    return [*group[: MAX_PROBLEMS_PER_ALERT - 1], more]


def _alarms(leader: LeaderView | None) -> Iterator[Problem]:
    series = () if leader is None else leader.alarms.series
    for view in sorted(series, key=lambda each: -each.evidence):
        if view.alarm is not None and not view.alarm.acknowledged:
            severity = "warning" if view.series.measure == COVERAGE else "critical"
            text = alarm_sentence(view.series, view.alarm, view.unverifiable)
            yield Problem(alert_of(view.series), severity, text)


def _inputs(hour: Mapping[Path, int], quarter: Mapping[Path, int]) -> Iterator[Problem]:
    judgments = _read(hour, "judgments")
    orphans = hour.get(("judgments", "orphan"), 0)
    at_most = limit("orphan_share_limit")
    if judgments >= limit("min_queries") and orphans > at_most * judgments:
        yield Problem(
            *("EvaluatorOrphans", "warning"),
            f"{_percent(orphans, judgments)} of the judgments of the last hour have no ranking "
            f"(limit {_percent(at_most, 1)}): most often keys or partitioners differ.",
        )
    settled = hour.get(("queries", "settled"), 0)
    if settled >= limit("min_queries") and not hour.get(("judgments", "applied"), 0):
        yield Problem(
            *("EvaluatorNoJudgments", "warning"),
            f"No judgment was applied within the last hour, in which {settled:,} queries settled.",
        )
    elif settled >= limit("min_queries"):
        judged = settled - hour.get(("queries", "settled_unjudged"), 0)
        least = limit("judged_share_limit")
        if judged < least * settled:
            yield Problem(
                *("EvaluatorJudgedShareLow", "warning"),
                f"{_percent(judged, settled)} of the {settled:,} queries that settled within the "
                f"last hour are judged (least {_percent(least, 1)}): quality is measured on these "
                "only.",
            )
    records = sum(_read(quarter, log) for log in LOGS)
    if records < limit("min_expected_messages"):
        return
    at_most = limit("dead_letter_share_limit")
    for path, n in quarter.items():
        if path[0] == "dead_letters" and path[1] not in _OWN_FIGURES and n > at_most * records:
            yield Problem(
                *("EvaluatorDeadLetters", "warning"),
                f"{_percent(n, records)} of the records of the last quarter of an hour went to "
                f"the dead letters as {path[1]} (limit {_percent(at_most, 1)}).",
            )
    out_of_order = quarter.get(("extra", "out_of_order"), 0)
    at_most = limit("out_of_order_share_limit")
    if out_of_order > at_most * records:
        yield Problem(
            *("EvaluatorOutOfOrder", "warning"),
            f"{_percent(out_of_order, records)} of the records of the last quarter of an hour are "
            f"older than out_of_orderness_ms allows (limit {_percent(at_most, 1)}).",
        )


def _read(increase: Mapping[Path, int], log: str) -> int:
    """Records of a log without those that carry no message."""
    return increase.get((log, "read"), 0) - sum(increase.get((log, o), 0) for o in _UNCOUNTED)


def _tasks(snapshot: Snapshot, recent: Recent, now_ms: int) -> Iterator[Problem]:
    for view in snapshot:
        ends = [(view.end_offsets.get(log), view.positions.get(log)) for log in LOGS]
        lag = sum(max(0, end - at) for end, at in ends if end is not None and at is not None)
        if lag > limit("lag_limit") and recent.is_stalled(view, now_ms=now_ms):
            yield Problem(
                *("EvaluatorStalled", "critical"),
                f"Task {view.task} has {lag:,} unread records, and its watermark has not moved for "
                f"{STALL_MS // 60_000} minutes.",
            )
    if any(view.restoring for view in snapshot):
        return
    for view in snapshot:
        at_most = limit("watermark_age_limit_seconds")
        if (
            view.watermark_ms is not None
            and now_ms - view.watermark_ms > 1000 * at_most
            and recent.was_old(view, 1000 * at_most, now_ms=now_ms)  # not just catching up
        ):
            yield Problem(
                *("EvaluatorWatermarkStale", "critical"),
                f"The watermark of task {view.task} is {(now_ms - view.watermark_ms) // 60_000:,} "
                f"minutes behind the clock (limit {at_most / 60:.0f}): none of its queries settle.",
            )


def _room(snapshot: Snapshot, resources: Resources) -> Iterator[Problem]:
    used, at_most = resources.resident, resources.memory_limit
    if used is not None and at_most is not None and used > limit("memory_share_limit") * at_most:
        yield Problem(
            *("EvaluatorMemoryHigh", "warning"),
            f"The process uses {_percent(used, at_most)} of its memory limit of "
            f"{at_most / 2**20:,.0f} MiB (limit {_percent(limit('memory_share_limit'), 1)}).",
        )
    free, least = resources.disk_free, limit("disk_free_limit_bytes")
    if free is not None and free < least:
        yield Problem(
            *("EvaluatorDiskLow", "warning"),
            f"The disk of state_dir has {free / 1e9:.2f} GB left (limit {least / 1e9:.0f} GB).",
        )
    largest, share = resources.state_limit, limit("store_share_limit")
    for view in snapshot:
        if largest is not None and view.state_bytes / share > largest:
            yield Problem(
                *("EvaluatorStoreNearLimit", "warning"),
                f"The store of task {view.task} takes {_percent(view.state_bytes, largest)} of "
                f"max_store_bytes (limit {_percent(share, 1)}).",
            )


def _percent(part: float, whole: float) -> str:
    """A share as text.

    >>> _percent(1, 20)
    '5 %'
    """
    return f"{round(100 * part / whole, 1):g} %"

"""The document of `/status`, and the size limit of `/totals`."""

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from evaluator.core.alarms.rules import WINDOWS
from evaluator.core.alarms.ticks import HOUR_MS, first_hour_of
from evaluator.core.online.views import AlarmView, LeaderView, ModelView
from evaluator.core.types.records import LOGS, MAX_SKEW_MS
from evaluator.core.types.tally import Group, Tally, group_of
from evaluator.exposition.alarm_sentence import alarm_sentence, alert_of
from evaluator.exposition.snapshot import Snapshot, StoreSnapshot, TaskView

MAX_ROWS_BYTES: Final = 8 << 20
ROW_BYTES: Final = 256
"""Bytes of a row in JSON, without the names of model, variant and ranker."""
_KINDS: Final = {"running", "settled", "segment_running", "segment_settled"}
_PAIR: Final = 2
"""Length of a group that is not of a level."""


def status_document(
    snapshot: Snapshot,
    *,
    version: str,
    reasons: list[str],
    now_ms: int,
    settings: Mapping[str, Any],
    identity: Mapping[str, object] = MappingProxyType({}),
    max_future_skew_ms: int,
    leader: LeaderView | None = None,
) -> dict[str, Any]:
    """The document of `/status`; secrets in *settings* must be masked.

    *identity* has meaning, fingerprint and place.
    """
    return {
        "version": version,
        **identity,
        "ready": not reasons,
        "reasons": reasons,
        "warnings": [*skew_warnings(snapshot), *ahead_warnings(snapshot, max_future_skew_ms)],
        "clock_skew_ms": snapshot.skew_ms,
        "now_ms": now_ms,
        "last_commit_ms": snapshot.last_commit_ms,
        "tasks_owned": [view.task for view in snapshot],
        "tasks": [
            {**_task_document(view), **_snapshot_document(snapshot.store_snapshots.get(view.task))}
            for view in snapshot
        ],
        "leader": None if leader is None else _leader_document(leader),
        "settings": dict(settings),
    }


def skew_warnings(snapshot: Snapshot) -> Iterator[str]:
    """A sentence if the clock of this machine differs too much from the broker's."""
    skew_ms = snapshot.skew_ms or 0
    if abs(skew_ms) > MAX_SKEW_MS:
        side = "ahead of" if skew_ms > 0 else "behind"
        yield (
            f"The clock of this machine is {abs(skew_ms) // 1000} s {side} the broker's, so the "
            "worker writes no heartbeats. Correct the clock (NTP)."
        )


def ahead_warnings(snapshot: Snapshot, max_future_skew_ms: float) -> Iterator[str]:
    """A sentence for each log with a clock too far ahead of the broker's."""
    ahead_ms = snapshot.clocks_ahead_ms()
    for log in LOGS:
        far = {task: ms for (name, task), ms in ahead_ms.items() if name == log}
        far = {task: ms for task, ms in far.items() if ms > max_future_skew_ms}
        if far:
            worst = max(far, key=lambda task: far[task])
            others = f" (and of {len(far) - 1} more partitions by less)" if len(far) > 1 else ""
            yield (
                f"The clock of {log}-{worst} is {far[worst] // 1000} s ahead of the broker's"
                f"{others}: a producer's clock is ahead. Until the broker's clock has reached it, "
                "records of other producers get wrong event times, and judgments become orphans."
            )


def _task_document(view: TaskView) -> dict[str, Any]:
    lags = {log: _lag(view.end_offsets.get(log), view.positions.get(log)) for log in LOGS}
    return {
        "task": view.task,
        "positions": dict(view.positions),
        "end_offsets": dict(view.end_offsets),
        "lag": lags,
        "clocks_ms": dict(view.clocks_ms),
        "watermark_ms": view.watermark_ms,
        "open": view.n_open,
        "memory_tier_bytes": view.memory_tier_bytes,
        "early": view.n_early,
        "restoring": view.restoring,
        "restore_left": view.restore_left,
        "restore_seconds_left": view.restore_seconds,
        "loaded_seconds": view.loaded_seconds,
        "state_bytes": view.state_bytes,
        "last_checkpoint_ms": view.checkpoint_ms,
        "last_checkpoint_bytes": view.checkpoint_bytes,
    }


def _snapshot_document(snapshot: StoreSnapshot | None) -> dict[str, Any]:
    """The last snapshot of a store: None before it, and without snapshots."""
    written_ms, n_bytes = snapshot or (None, 0)
    return {"last_snapshot_ms": written_ms if n_bytes else None, "last_snapshot_bytes": n_bytes}


def _lag(end: int | None, position: int | None) -> int | None:
    return None if end is None or position is None else max(0, end - position)


def _leader_document(view: LeaderView) -> dict[str, Any]:
    return {
        "is_leader": view.is_leader,
        "awaited": list(view.awaited),
        "buffered": view.n_buffered,
        "ignored": view.n_ignored,
        "settled_time_ms": view.now_ms,
        "models": [_model_document(model) for model in view.models],
        "alarms": {
            "watched_until_ms": view.alarms.tick_end_ms,
            "series_left_out": view.alarms.n_left_out,
            "left_out": [name._asdict() for name in view.alarms.left_out],
            "series": [_series_document(series) for series in view.alarms.series],
        },
    }


def _series_document(view: AlarmView) -> dict[str, Any]:
    first_ms = [first_hour_of(week) * HOUR_MS for week in view.weeks]
    alarm = None
    if view.alarm is not None:
        carried = [of._asdict() for of in view.alarm.carried_by]
        summary = alarm_sentence(view.series, view.alarm, view.unverifiable)
        named = {"carried_by": carried, "context": view.alarm.context._asdict()}
        text = {"alert": alert_of(view.series), "summary": summary}
        alarm = {**view.alarm._asdict(), **named, **text}
    return {
        **view.series._asdict(),
        "evidence": view.evidence,
        "reference_weeks_ms": first_ms,
        "reference_from_ms": view.reference_from_ms,
        "spreads": dict(zip(map(str, WINDOWS), view.spreads, strict=False)),
        "windows": view.n_windows,
        "unverifiable": view.unverifiable or None,
        "alarm": alarm,
    }


_LAST: Final = ("version", "status", "reason")


def _model_document(view: ModelView) -> dict[str, Any]:
    last = view.last_experiment
    return {
        "model": view.model,
        "epoch": view.epoch,
        "version": view.version,
        "champion_version": None if view.champion is None else view.champion.number,
        "challenger_version": None if view.challenger is None else view.challenger.number,
        "updates": view.updates,
        "loss": view.loss,
        "frozen": view.frozen,
        "unusable": dict(view.unusable),
        "unusable_share": view.unusable_share,
        "unknown_transforms": list(view.unknown_transforms),
        "evidence_for": view.evidence_for,
        "evidence_against": view.evidence_against,
        "traces": view.n_traces,
        "last_experiment": None if last is None else dict(zip(_LAST, last, strict=True)),
    }


def limited(
    tally: Tally, *, rows_per_ranker: int, max_bytes: int = MAX_ROWS_BYTES
) -> tuple[Tally, int, int]:
    """Limits a tally to the (model, variant) pairs, then to the levels, with the most queries.

    Args:
        tally: sums over tasks.
        rows_per_ranker: rows of one kind for each ranker of a pair.
        max_bytes: size limit of all rows in JSON.
    Returns:
        *tally* without the other pairs and levels, and the numbers of these.
    """
    queries: dict[Group, int] = {}
    blocks: dict[Group, set[tuple[str, ...]]] = {}
    for path, n in tally.items():
        if path[0] in _KINDS:
            group = group_of(path)
            blocks.setdefault(group, set()).add((path[0], path[-3]))
            if path[-1] == "queries":
                queries[group] = max(n, queries.get(group, 0))
    kept = set()
    for group in sorted(blocks, key=lambda each: (len(each), -queries.get(each, 0), each)):
        names = len(blocks[group]) * len(json.dumps(group))
        rankers = sum(len(json.dumps(ranker)) for _, ranker in blocks[group])
        max_bytes -= rows_per_ranker * (len(blocks[group]) * ROW_BYTES + names + rankers)
        if max_bytes < 0:
            break
        kept.add(group)
    if len(kept) == len(blocks):
        return tally, 0, 0
    left = {path: n for path, n in tally.items() if path[0] not in _KINDS or group_of(path) in kept}
    n_pairs = sum(len(group) == _PAIR for group in blocks.keys() - kept)
    return left, n_pairs, len(blocks) - len(kept) - n_pairs

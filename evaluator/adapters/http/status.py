"""The document of `/status`."""

from collections.abc import Iterator, Mapping
from typing import Any

from evaluator.core.releases import PupilView
from evaluator.core.steward import StewardView
from evaluator.core.types import LOGS, MAX_SKEW_MS, Snapshot, TaskView


def status_document(
    snapshot: Snapshot,
    *,
    version: str,
    reasons: list[str],
    now_ms: int,
    settings: Mapping[str, Any],
    max_future_skew_ms: int,
    steward: StewardView | None = None,
) -> dict[str, Any]:
    """The document of `/status`; *settings* are shown as given, so without secrets."""
    return {
        "version": version,
        "ready": not reasons,
        "reasons": reasons,
        "warnings": [*_skew_warnings(snapshot), *_ahead_warnings(snapshot, max_future_skew_ms)],
        "clock_skew_ms": snapshot.skew_ms,
        "now_ms": now_ms,
        "last_commit_ms": snapshot.last_commit_ms,
        "tasks_owned": [view.task for view in snapshot],
        "tasks": [_task_document(view) for view in snapshot],
        "steward": None if steward is None else _steward_document(steward),
        "settings": dict(settings),
    }


def _skew_warnings(snapshot: Snapshot) -> Iterator[str]:
    skew_ms = snapshot.skew_ms or 0
    if abs(skew_ms) > MAX_SKEW_MS:
        side = "ahead of" if skew_ms > 0 else "behind"
        yield (
            f"The clock of this machine is {abs(skew_ms) // 1000} s {side} the broker's, so the "
            "worker writes no heartbeats. Correct the clock (NTP)."
        )


def _ahead_warnings(snapshot: Snapshot, max_future_skew_ms: int) -> Iterator[str]:
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
        "held": view.held,
        "held_bytes": view.held_bytes,
        "waiting": view.waiting,
        "restoring": view.restoring,
        "restore_left": view.restore_left,
        "restore_seconds_left": view.restore_seconds,
        "loaded_seconds": view.loaded_seconds,
        "state_bytes": view.state_bytes,
        "last_checkpoint_ms": view.checkpoint_ms,
        "last_checkpoint_bytes": view.checkpoint_bytes,
    }


def _lag(end: int | None, position: int | None) -> int | None:
    return None if end is None or position is None else max(0, end - position)


def _steward_document(view: StewardView) -> dict[str, Any]:
    return {
        "in_office": view.in_office,
        "awaited": list(view.awaited),
        "waiting": view.n_waiting,
        "left_alone": view.n_left_alone,
        "settled_time_ms": view.now_ms,
        "models": [_model_document(pupil) for pupil in view.pupils],
    }


def _model_document(pupil: PupilView) -> dict[str, Any]:
    return {
        "model": pupil.model,
        "epoch": pupil.epoch,
        "version": pupil.version,
        "champion_version": None if pupil.champion is None else pupil.champion.number,
        "candidate_version": None if pupil.candidate is None else pupil.candidate.number,
        "updates": pupil.updates,
        "loss": pupil.loss,
        "frozen": pupil.frozen,
        "evidence_for": pupil.evidence_for,
        "evidence_against": pupil.evidence_against,
        "traces": pupil.n_traces,
    }

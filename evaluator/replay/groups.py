"""Settled queries with their features, as groups to learn from.

Grades are those that stood at maturity, and groups come in the order in which queries settle, for
that is what whoever learns from a live worker sees.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from evaluator.core.accumulators import add_tally
from evaluator.core.groups import Group
from evaluator.core.types import (
    LOGS,
    FloatArray,
    Outputs,
    RankingColumns,
    SettledColumns,
    Tally,
)
from evaluator.ports import RangeSource, SourceUnusable
from evaluator.replay.feeding import ended, fed, tasks_of
from evaluator.replay.run import Meaning


class _Offered(NamedTuple):
    """What a ranking offered: features `[n_candidates, n_features]`, None without any."""

    candidate_ids: list[str]
    names: tuple[str, ...] | None
    features: FloatArray | None
    propensities: Sequence[float] | None


class _Settled(NamedTuple):
    """A settled query, sorted by its first three members."""

    event_time_ms: int
    trace_id: str
    node_id: str
    offered: _Offered
    grades: list[float]


@dataclass(slots=True)
class GroupLog:
    """Everything to learn from in a range: groups in the order in which their queries settled.

    `propensities` are parallel to the groups: those of its candidates, None for a group without
    any. `n_without` groups have no features; they are there, with no candidates.
    """

    feature_names: tuple[str, ...]
    groups: list[Group] = field(default_factory=list)
    propensities: list[FloatArray | None] = field(default_factory=list)
    n_without: int = 0
    n_dead_letters: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)


async def read_groups(
    source: RangeSource,
    meaning: Meaning,
    *,
    from_ms: int | None = None,
    to_ms: int | None = None,
    max_poll_records: int = 5_000,
    show_progress: bool | None = None,
) -> GroupLog:
    """Reads a range of both logs and joins it.

    Raises:
        SourceAway, SourceUnusable: also where two queries have other features, or none has any.
    """
    settled: list[_Settled] = []
    tally: Tally = {}
    ranges: dict[str, tuple[int, int]] = {}
    tasks = tasks_of(
        source,
        from_ms=from_ms,
        to_ms=to_ms,
        max_future_skew_ms=meaning.max_future_skew_ms,
        max_poll_records=max_poll_records,
        features=True,
        show_progress=show_progress,
    )
    async with aclosing(tasks):
        async for task, of_logs in tasks:
            gathering = _Gathering()
            engine = meaning.engine(task)
            async with aclosing(fed(engine, of_logs, gathering.on_rankings)) as feeding:
                async for outputs in feeding:
                    settled += gathering.settled(outputs)
            for outputs in ended(engine, meaning.at_end):
                settled += gathering.settled(outputs)
            add_tally(tally, engine.tally())
            for log in LOGS:
                ranges[f"{log}-{task}"] = (of_logs[log].start, of_logs[log].end)
    settled.sort(key=lambda one: one[:3])
    n_dead_letters = sum(n for path, n in tally.items() if path[0] == "dead_letters")
    return replace(_group_log(settled), ranges=ranges, n_dead_letters=n_dead_letters)


class _Gathering:
    """What the rankings of one task offered, until their queries settle."""

    def __init__(self) -> None:
        self._offered: dict[int, _Offered] = {}

    def on_rankings(self, rankings: RankingColumns) -> RankingColumns:
        """Keeps what the rankings of a batch offer, by offset."""
        features = rankings.features
        if features is None:
            raise AssertionError("rankings were decoded without their features")
        at = 0
        rows = features.of_rows(rankings.candidate_counts)
        for row, (offset, n, of_row) in enumerate(
            zip(rankings.offsets.tolist(), rankings.candidate_counts.tolist(), rows, strict=True)
        ):
            self._offered[offset] = _Offered(
                rankings.candidate_ids.strings(at, at + n),
                features.names[row],
                of_row,
                features.propensities.get(row),
            )
            at += n
        return rankings

    def settled(self, outputs: Outputs) -> list[_Settled]:
        """The queries that have settled, with what they offered."""
        return [one for alike in outputs.settled for one in self._of_stratum(alike)]

    def _of_stratum(self, alike: SettledColumns) -> list[_Settled]:
        columns = (
            alike.offsets,
            alike.event_times_ms,
            alike.trace_ids,
            alike.node_ids,
            list(alike.grades),
        )
        found = []
        for offset, event_time_ms, trace_id, node_id, grades in zip(*columns, strict=True):
            offered = self._offered.pop(offset)
            known = [_or_unjudged(grades.get(name)) for name in offered.candidate_ids]
            found.append(_Settled(event_time_ms, trace_id, node_id, offered, known))
        return found


def _or_unjudged(grade: float | None) -> float:
    """What a candidate counts as that nobody judged: as in the measures, its gain is 0."""
    return 0.0 if grade is None else grade


def _group_log(settled: Sequence[_Settled]) -> GroupLog:
    """Raises SourceUnusable where two queries have other features, or none has any."""
    names = next((one.offered.names for one in settled if one.offered.names is not None), None)
    if names is None:
        raise SourceUnusable(
            f"none of {len(settled)} settled queries has features, so there is nothing to learn "
            "from. Send features with the rankings, or give every row of the samples some."
        )
    log = GroupLog(names)
    for one in settled:
        offered = one.offered
        if offered.names is not None and offered.names != names:
            raise SourceUnusable(
                f"the features of {one.trace_id}, {one.node_id} are {', '.join(offered.names)}; "
                f"those before it are {', '.join(names)}. Take a range in which they do not change."
            )
        log.n_without += offered.names is None
        _add_group(log, offered, one.grades)
    return log


def _add_group(log: GroupLog, offered: _Offered, grades: list[float]) -> None:
    """Of a repeated candidate the first mention counts."""
    if offered.features is None:
        log.groups.append(Group(np.zeros((0, len(log.feature_names))), np.zeros(0)))
        log.propensities.append(None)
        return
    first = {name: place for place, name in reversed(list(enumerate(offered.candidate_ids)))}
    chosen = sorted(first.values())
    log.groups.append(Group(offered.features[chosen], np.array(grades)[chosen]))
    seen = offered.propensities
    log.propensities.append(None if seen is None else np.array(seen)[chosen])

"""Settled queries with their features, as groups to learn from.

Grades are those that stood at maturity, and groups come in the order in which queries settle, for
that is what whoever learns from a live worker sees.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from evaluator.core.features import FEATURE_NAMES, Embedder, History, Ledger, features_of
from evaluator.core.learning.groups import Group
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.candidates import Described
from evaluator.core.types.records import (
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
    """What a ranking offered: features `[n_candidates, n_features]`, None without any.

    Of candidates that are described these are made later.
    """

    candidate_ids: list[str]
    names: tuple[str, ...] | None
    features: FloatArray | None
    propensities: Sequence[float] | None
    described: Described | None


class _Settled(NamedTuple):
    """A settled query, sorted by its first three members."""

    event_time_ms: int
    trace_id: str
    node_id: str
    offered: _Offered
    grades: Mapping[str, float]


@dataclass(slots=True)
class GroupLog:
    """Everything to learn from in a range: groups in the order in which their queries settled.

    `propensities` are parallel to the groups: those of its candidates, None for a group without
    any. `n_without` groups have no features; they are there, with no candidates. `history` is the
    table after all groups, `embedder` names what features were made with and `max_grade` is what
    counted fully in the table; None if none were made.
    """

    feature_names: tuple[str, ...]
    groups: list[Group] = field(default_factory=list)
    propensities: list[FloatArray | None] = field(default_factory=list)
    n_without: int = 0
    n_dead_letters: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    history: History | None = None
    embedder: str | None = None
    max_grade: int | None = None


async def read_groups(
    source: RangeSource,
    meaning: Meaning,
    *,
    embedder: Embedder,
    max_grade: int = 2,
    from_ms: int | None = None,
    to_ms: int | None = None,
    max_poll_records: int = 5_000,
    show_progress: bool | None = None,
) -> GroupLog:
    """Reads a range of both logs and joins it.

    Features of candidates that are described are made with *embedder*, group by group, each with
    the table that the groups before it have taught, in which *max_grade* counts fully.

    Raises:
        SourceUnavailable, SourceUnusable: also if features differ between queries, or are missing.
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
            for name in LOGS:
                ranges[f"{name}-{task}"] = (of_logs[name].start, of_logs[name].end)
    settled.sort(key=lambda one: one[:3])
    n_dead_letters = sum(n for path, n in tally.items() if path[0] == "dead_letters")
    log = _group_log(settled, embedder, max_grade)
    return replace(log, ranges=ranges, n_dead_letters=n_dead_letters)


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
                features.described.get(row),
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
            known = {name: grade for name, grade in grades.items() if grade is not None}
            found.append(_Settled(event_time_ms, trace_id, node_id, offered, known))
        return found


def _group_log(settled: Sequence[_Settled], embedder: Embedder, max_grade: int) -> GroupLog:
    """Raises SourceUnusable where two queries have other features, or none has any."""
    making = _Making(embedder, max_grade)
    log: GroupLog | None = None
    n_without = 0
    for one in settled:
        offered = making.offered(one)
        if offered.names is None:
            n_without += 1
            if log is not None:
                _add_group(log, offered, one.grades)
            continue
        if log is None:
            log = GroupLog(offered.names)
            for _ in range(n_without):
                _add_group(log, offered._replace(features=None), {})
        elif offered.names != log.feature_names:
            raise SourceUnusable(
                f"the features of {one.trace_id}, {one.node_id} are {', '.join(offered.names)}; "
                f"those before it are {', '.join(log.feature_names)}. Take a range in which they "
                "do not change."
            )
        _add_group(log, offered, one.grades)
    if log is None:
        raise SourceUnusable(
            f"none of {len(settled)} settled queries has features, so there is nothing to learn "
            "from. Send features with the rankings, or say what their candidates are; or give "
            "every row of the samples some."
        )
    log = replace(log, n_without=n_without)
    if making.history is None:
        return log
    return replace(log, history=making.history, embedder=embedder.name, max_grade=max_grade)


class _Making:
    """Makes features of what is described: of each group before anything is learned from it."""

    def __init__(self, embedder: Embedder, max_grade: int) -> None:
        self._embedder = embedder
        self._max_grade = max_grade
        self._ledger: Ledger | None = None

    def offered(self, one: _Settled) -> _Offered:
        """The same with features, if it has any or they can be made."""
        described = one.offered.described
        if described is None:
            return one.offered
        self._ledger = self._ledger or Ledger(max_grade=self._max_grade)
        features = features_of(described, embedder=self._embedder, history=self._ledger.history)
        self._ledger.learn(described, one.grades)
        return one.offered._replace(names=FEATURE_NAMES, features=features)

    @property
    def history(self) -> History | None:
        """The table at the end; None if nothing was described."""
        return None if self._ledger is None else self._ledger.history


def _add_group(log: GroupLog, offered: _Offered, grades: Mapping[str, float]) -> None:
    """Of a repeated candidate the first mention counts; one that nobody judged has grade 0."""
    if offered.features is None:
        log.groups.append(Group(np.zeros((0, len(log.feature_names))), np.zeros(0)))
        log.propensities.append(None)
        return
    first = {name: place for place, name in reversed(list(enumerate(offered.candidate_ids)))}
    chosen = sorted(first.values())
    known = np.array([grades.get(name, 0.0) for name in offered.candidate_ids], np.float64)
    log.groups.append(Group(offered.features[chosen], known[chosen]))
    seen = offered.propensities
    log.propensities.append(None if seen is None else np.array(seen)[chosen])

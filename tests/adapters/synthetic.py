"""A synthetic worker for the HTTP surfaces: a snapshot that changes, and views that show it.

`python -m tests.adapters.synthetic --port 9464` serves it, so that the page can be viewed without a
broker.
"""

import argparse
import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from evaluator.adapters.http import HttpServer, status_document
from evaluator.adapters.prometheus import EvaluatorCollector, exposition, registry_of
from evaluator.core.alarms.alarm import Alarm, Carrier, Context
from evaluator.core.alarms.ticks import HOUR_MS, first_hour_of
from evaluator.core.measures import UNITS_PER_ONE, MeasureSet
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.online.events import Version
from evaluator.core.online.views import AlarmsView, AlarmView, LeaderView, ModelView
from evaluator.core.online.watched import SeriesName
from evaluator.core.types.records import LOGS, SERVED, Log
from evaluator.core.types.segments import SegmentRules
from evaluator.core.types.tally import GroupedTally, Tally
from evaluator.exposition.snapshot import Resources, Snapshot, StoreSnapshot, TaskView, WorstQuery
from evaluator.wire.outputs.encoding import totals_document

MEASURES = ("top1", "top3", "mrr", "ndcg@10", "map@10")
NOW_MS = 1_763_690_400_000
HOSTILE = "<img src=x onerror=document.title='owned'>\n\"quoted\" \\ back\u2028ünï"
Pair = tuple[str, str]


def quality(
    pair: Pair, ranker: str, *, queries: int, value: float, measures: Sequence[str] = MEASURES
) -> Tally:
    """Running and settled sums of (model, variant, ranker): *queries* with values near *value*."""
    tally: Tally = {}
    for column, measure in enumerate(measures):
        value_units = round(min(1.0, value * (0.8 + 0.07 * (column % 5))) * UNITS_PER_ONE)
        running = ("running", *pair, ranker, measure)
        settled = ("settled", *pair, ranker, measure)
        tally[*running, "queries"] = queries + queries // 8
        tally[*running, "sum_units"] = value_units * (queries + queries // 8)
        tally[*settled, "queries"] = queries
        tally[*settled, "sum_units"] = value_units * queries
        tally[*settled, "square_units"] = value_units * value_units // UNITS_PER_ONE * queries
    return tally


def ledger(n: int) -> Tally:
    """A balanced ledger of about *n* messages of each kind, with every outcome."""
    rankings = {"malformed": n // 900, "heartbeat": 12, "duplicate": n // 300}
    rankings |= {"conflicting": n // 2000, "open": n // 4, "expired": n // 2}
    judgments = {"malformed": n // 700, "heartbeat": 9, "duplicate": n // 250}
    judgments |= {"conflicting": n // 1500, "late": n // 120, "orphan": n // 400}
    judgments |= {"over_limit": 0, "early": n // 500, "applied": n}
    tally: Tally = {("rankings", name): value for name, value in rankings.items()}
    tally |= {("judgments", name): value for name, value in judgments.items()}
    tally["rankings", "read"] = sum(rankings.values())
    tally["judgments", "read"] = sum(judgments.values())
    dead = {"late": judgments["late"], "orphan": judgments["orphan"]}
    dead |= {"conflicting": rankings["conflicting"] + judgments["conflicting"]}
    dead |= {"schema": rankings["malformed"], "decode": judgments["malformed"]}
    tally |= {("dead_letters", reason): value for reason, value in dead.items()}
    return tally


def queries(pairs: Sequence[Pair], *, settled_each: int) -> Tally:
    """Query counts of pairs that each settled the same number, five in six judged."""
    n_pairs = len(pairs)
    unjudged = settled_each // 6
    tally: Tally = {
        ("queries", "started"): n_pairs * (settled_each + settled_each // 3),
        ("queries", "with_value"): n_pairs * (settled_each + settled_each // 8),
        ("queries", "settled"): n_pairs * settled_each,
        ("queries", "settled_judged"): n_pairs * (settled_each - unjudged),
        ("queries", "settled_unjudged"): n_pairs * unjudged,
        ("extra", "out_of_order"): settled_each // 50,
        ("extra", "nothing_relevant"): settled_each // 9,
        ("delay_sum_ms",): settled_each * 90_000,
    }
    for index in range(13):
        tally["delay", str(index)] = settled_each * (13 - index) // 40
    for model, variant in pairs:
        tally["settled_queries", model, variant, "yes"] = settled_each - unjudged
        tally["settled_queries", model, variant, "no"] = unjudged
    return tally


def task_view(task: int, tally: Tally, **changes: Any) -> TaskView:
    """A task with *tally*, ready and at the end of its logs unless *changes* set otherwise."""
    read: dict[Log, int] = {log: tally.get((log, "read"), 0) for log in LOGS}
    facts: dict[str, Any] = {
        "positions": read,
        "end_offsets": dict(read),
        "clocks_ms": dict.fromkeys(LOGS, NOW_MS),
        "watermark_ms": NOW_MS - 300_000,
        "n_open": tally.get(("rankings", "open"), 0),
        "memory_tier_bytes": 1 << 20,
        "n_early": tally.get(("judgments", "early"), 0),
        "restoring": False,
        "restore_left": 0,
        "state_bytes": 4096,
        "checkpoint_ms": NOW_MS - 5000,
        "checkpoint_bytes": 900,
    }
    return TaskView(task=task, tally=GroupedTally.of(tally), **(facts | changes))


def one_task(tally: Tally, **changes: Any) -> Snapshot:
    """One task whose whole tally this process has counted."""
    return Snapshot(
        (task_view(0, tally, **changes),),
        GroupedTally.of(tally),
        last_commit_ms=NOW_MS,
        process_counts={
            ("quarantined_stores", "0"): 0,
            ("snapshot_bytes", "written"): 20,
            ("snapshot_failures", "fetch"): 1,
        },
        store_snapshots={0: StoreSnapshot(1_500, 30)},
        skew_ms=20,
    )


_WEEKS = (2_910, 2_911, 2_912, 2_913)
_WEEKS_MS = tuple(first_hour_of(week) * HOUR_MS for week in _WEEKS)
_NAME = SeriesName("ranker", "prod", "served", "ndcg@10", "", "", "own")
_WATCHED = AlarmView(
    _NAME,
    1.7,
    Alarm(
        *(NOW_MS, NOW_MS - 3_600_000, 6, 0.031, 0.571, 0.602, 0.006, 1.5, 41_210, True),
        (Carrier("locale", "de", 0.82, 0.24, -0.112),),
        Context(0.8, 0.81, "served-bm25", -0.03, 0.004, _WEEKS_MS),
    ),
    _WEEKS,
    "coverage",
    4,
    spreads=(0.012, 0.006, 0.004, 0.003),
    day=(0.58, 0.6, 0.005),
)
_QUIET = AlarmView(
    _NAME._replace(segment="locale", level="de"), 0.0, None, (), reference_from_ms=NOW_MS
)


def learned(**changes: Any) -> LeaderView:
    """The view of a leader with two models: one in an experiment, and one that does not learn."""
    values = {"champion": (32, 24 * UNITS_PER_ONE), "challenger": (20, 0)}
    names = ("phi_a", "phi_b")
    ranker = ModelView(
        model="ranker",
        epoch=1,
        version=5,
        champion=Version(4, 1_000, (0.5, -2.0), names),
        challenger=Version(5, 2_000, (0.75, -1.0), names),
        updates=250,
        frozen="",
        evidence_for=12.5,
        evidence_against=0.25,
        n_traces=900,
        last_experiment=(3, "rejected", "undecided"),
        unusable={"features": 4, "propensities": 0, "overflow": 1},
        unusable_share=0.005,
        unknown_transforms=("prise",),
        evidence_needed=100.0,
        loss=1.25,
    )
    other = ModelView("other", 0, 0, None, None, 0, "features changed", 1.0, 1.0, 0, 100.0)
    facts: dict[str, Any] = {
        "is_leader": True,
        "n_tasks": 2,
        "awaited": (1,),
        "n_buffered": 7,
        "n_ignored": 3,
        "now_ms": NOW_MS,
        "models": (ranker, other),
        "alarms": AlarmsView((_WATCHED, _QUIET), 2, NOW_MS, (_NAME._replace(measure="mrr"),)),
        "counts": {
            ("leader_epochs",): 2,
            ("gaps",): 0,
            ("records", "query"): 50,
            ("records", "watermark"): 9,
            ("records", "foreign"): 1,
            ("records", "unreadable"): 0,
            ("releases", "ranker", "promoted"): 1,
            **{
                ("values", model, ranker, "mrr", name): n if model == "ranker" else 0
                for model in ("ranker", "other")
                for ranker, figures in values.items()
                for name, n in zip(("queries", "sum_units"), figures, strict=True)
            },
        },
    }
    return LeaderView(**(facts | changes))


def alarmed(**changes: str) -> LeaderView:
    """The same view with an unacknowledged alarm of this series."""
    leader = learned()
    on, quiet = leader.alarms.series
    assert on.alarm is not None
    series = on.series._replace(**changes)
    on = replace(on, alarm=on.alarm._replace(acknowledged=False), series=series)
    return replace(leader, alarms=replace(leader.alarms, series=(on, quiet)))


@dataclass
class FixedViews:
    """Views of one snapshot, which a test may replace; ready unless there are `reasons`."""

    current: Snapshot = field(default_factory=Snapshot)
    reasons: list[str] = field(default_factory=list)
    is_alive: bool = True
    reads_queries: bool = True
    measures: Sequence[str] = MEASURES
    now_ms: int | None = NOW_MS
    live: Mapping[str, bytes] | None = None
    learned: LeaderView | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    segments: tuple[str, ...] = ()
    room: Resources = Resources()  # noqa: RUF009  # it is immutable

    def __post_init__(self) -> None:
        self.registry = registry_of(
            EvaluatorCollector(
                self.snapshot,
                ready=lambda: not self.reasons,
                version="1.2.3",
                leader=self.leader,
            )
        )

    def weights(self) -> Mapping[str, bytes] | None:
        return self.live

    def leader(self) -> LeaderView | None:
        return self.learned

    def snapshot(self) -> Snapshot:
        return self.current

    def resources(self) -> Resources:
        return self.room

    def readiness(self) -> list[str]:
        return self.reasons

    def alive(self) -> bool:
        return self.is_alive

    def status(self) -> Mapping[str, Any]:
        now_ms = int(time.time() * 1000) if self.now_ms is None else self.now_ms
        settings = {"maturity_ms": 3_600_000, "out_of_orderness_ms": 300_000, **self.settings}
        settings.setdefault("max_future_skew_ms", 300_000)
        return status_document(
            self.snapshot(),
            version="1.2.3",
            reasons=self.readiness(),
            now_ms=now_ms,
            settings=settings,
            max_future_skew_ms=300_000,
            leader=self.leader(),
            identity={"source": self.source},
        )

    def totals(self) -> Mapping[str, Any]:
        snapshot = self.snapshot()
        tally: Tally = {}
        for view in snapshot:
            add_tally(tally, view.tally)
        positions = {f"{log}-{v.task}": v.positions[log] for v in snapshot for log in LOGS}
        return {
            **totals_document(
                tally, MeasureSet.parse(list(self.measures)), SegmentRules(self.segments)
            ),
            "tasks": [view.task for view in snapshot],
            "positions": positions,
        }

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        return exposition(self.registry, accept)


class MovingViews(FixedViews):
    """A fast world: *speed* queries settle each second, and one model gets worse."""

    def __init__(self, pairs: Sequence[Pair], rankers: Sequence[str], *, speed: int) -> None:
        super().__init__(now_ms=None)
        self._pairs, self._rankers, self._speed = pairs, rankers, speed
        model, variant = pairs[0]
        leader = alarmed(model=model, variant=variant)
        on, quiet = leader.alarms.series
        series = (replace(on, unverifiable=""), quiet)
        self.learned = replace(leader, alarms=replace(leader.alarms, series=series))
        self._tally: Tally = {}
        self._n_seconds = 0

    def step(self) -> None:
        """Advances the world by one second."""
        self._n_seconds += 1
        n_settled = self._n_seconds * self._speed
        tally = ledger(n_settled * len(self._pairs)) | queries(self._pairs, settled_each=n_settled)
        for p, pair in enumerate(self._pairs):
            for r, ranker in enumerate(self._rankers):
                worse = 0.16 if p == 0 and r == 0 and self._n_seconds > 150 else 0.0
                wave = 0.03 * math.sin(self._n_seconds / 17 + p * 2 + r)
                noise = 0.05 * math.sin(self._n_seconds * 12.9898 * (p + 1) + r) % 0.03
                value = 0.86 - 0.05 * p % 0.3 - 0.07 * r + wave + noise - worse
                part = quality(pair, ranker, queries=self._speed, value=value)
                add_tally(self._tally, part)
        tally |= self._tally
        now_ms = int(time.time() * 1000)
        views = (
            task_view(0, tally, watermark_ms=now_ms - 302_000),
            task_view(1, {}, watermark_ms=now_ms - 341_000, n_open=1_204, n_early=3),
        )
        worst = [
            WorstQuery(
                n * UNITS_PER_ONE // 40, now_ms - 301_000 - 977 * n, f"trace-{n:016x}", "plan/3"
            )
            for n in range(10)
        ]
        self.current = Snapshot(
            *(views, GroupedTally.of(tally)),
            last_commit_ms=now_ms,
            worst={(*pair, measure): worst for pair in self._pairs for measure in MEASURES},
        )


async def serve(port: int, *, n_pairs: int, n_rankers: int, warm_seconds: int) -> None:
    names = ["tool-ranker", "graph-ranker", "doc-ranker", HOSTILE]
    names += [f"model-{i}" for i in range(n_pairs)]
    variants = ["prod", "canary", ""]
    pairs = [(names[i], variants[i % 3]) for i in range(n_pairs)]
    rankers = [SERVED, "bm25", *(f"scorer-{i}" for i in range(n_rankers))][:n_rankers]
    views = MovingViews(pairs, rankers, speed=37)
    server = HttpServer(views, host="127.0.0.1", port=port)
    begin_ms = int(time.time() * 1000) - 1000 * warm_seconds
    for second in range(warm_seconds):
        views.step()
        if second % 2:
            server.history.sample(views.snapshot(), now_ms=begin_ms + 1000 * second)
    await server.start()
    print(f"http://127.0.0.1:{server.port}/", flush=True)  # noqa: T201 - a program of its own
    while True:
        views.step()
        await asyncio.sleep(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rankers", type=int, default=2)
    parser.add_argument("--warm", type=int, default=240)
    options = parser.parse_args()
    coroutine = serve(
        options.port,
        n_pairs=options.pairs,
        n_rankers=options.rankers,
        warm_seconds=options.warm,
    )
    asyncio.run(coroutine)

"""The plan of a seed: the inputs of a world, its settings, and the frequencies of faults."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from tests.oracle.messages import Log, Raw
from tests.oracle.oracle import Settings
from tests.oracle.worlds import LAST_MOMENT_MS, NO_SKEW_LIMIT, Maker, populated, with_limits
from tests.oracle.worlds import settings as nasty_settings

MEASURES = ("top1", "hit@3", "mrr", "ndcg@10", "map", "p@3", "err@10", "ndcg_linear@2")
FAULTS: Mapping[str, float] = {
    "damage": 0.002,
    "disk full": 0.03,
    "disk full, written": 0.03,
    "commit answer lost": 0.1,
    "produce failed": 0.15,
    "produce ambiguous": 0.15,
}
"""Frequencies of faults, if a plan has them."""
Retention = Literal["for ever", "enough", "short at the end", "short"]
"""Whether inputs expire, and whether only when they are no longer needed."""
EVENTS = ("away", "expel", "freeze", "kill", "stop", "jump")


@dataclass(frozen=True)
class Plan:
    """All values that are drawn before the world starts."""

    seed: int
    settings: Settings
    inputs: Mapping[tuple[Log, int], tuple[Raw, ...]]
    base_ms: int
    span_ms: int
    seconds: float
    n_tasks: int
    n_machines: int
    run: int
    chunk: int
    memory_tier_bytes: int
    loop: Mapping[str, int | bool]
    release_timeout_seconds: float
    latency_seconds: float
    boundaries_per_life: int | None
    disk_loss_chance: float
    events: tuple[str, ...]
    chances: Mapping[str, float] = field(default_factory=dict)
    retention: Retention = "for ever"
    kept_more_ms: int = 1  # than required

    def wall_ms(self, at_seconds: float, jump_ms: int) -> int:
        """Wall clocks advance at the speed at which the records are produced."""
        ms = self.base_ms + round(at_seconds / self.seconds * self.span_ms) + jump_ms
        return min(max(ms, 0), LAST_MOMENT_MS)


def drawn_settings(random: Random) -> Settings:
    """Short durations, with measures that no query with a value lacks."""
    made = with_limits(nasty_settings(random), random)
    return replace(
        made,
        measures=tuple(random.sample(MEASURES, random.choice((1, 1, 2)))),
        freshness_half_life_ms=0,
        map_graded_max_grade=2,
        err_max_grade=4,
    )


def drawn_inputs(
    random: Random, settings: Settings, task: int, base_ms: int, span_ms: int
) -> dict[tuple[Log, int], tuple[Raw, ...]]:
    """Both logs of a task: keys that recur over the time of the world."""
    maker = Maker(random, settings, base_ms, NO_SKEW_LIMIT, n_candidates=(0, 1, 2, 3, 3))
    n_queries = random.choice((3, 6, 10))
    keys = [(f"t-{task}-{n // 2}", f"n-{n % 2}") for n in range(random.choice((2, 5, n_queries)))]
    starts = [(random.choice(keys), base_ms + random.randint(0, span_ms)) for _ in range(n_queries)]
    made = populated(maker, starts, n_judgments=random.choice((n_queries, 2 * n_queries)))
    logs: dict[Log, tuple[Raw, ...]] = {"rankings": made.rankings, "judgments": made.judgments}
    return {(log, task): raws for log, raws in logs.items()}


def drawn_retention(seed: int) -> tuple[Retention, int]:
    """Has its own random numbers: most worlds are the same without it."""
    random = Random(f"retention {seed}")
    kinds: tuple[Retention, ...] = ("for ever", "enough", "short at the end", "short")
    (kind,) = random.choices(kinds, (25, 50, 15, 10))
    return kind, random.choice((1, 1, 1, 10, 100))


def drawn(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(seed)
    retention, kept_more_ms = drawn_retention(seed)
    settings = drawn_settings(random)
    longest_ms = min(settings.key_reserved_ms, 200)
    span_ms = longest_ms * random.choice((2, 4, 8))
    base_ms = random.choice((0, 1_000, 1_763_690_000_000, 2**53, LAST_MOMENT_MS - 4 * span_ms))
    n_tasks = random.choice((1, 1, 1, 2, 3))
    inputs: dict[tuple[Log, int], tuple[Raw, ...]] = {}
    for task in range(n_tasks):
        inputs |= drawn_inputs(random, settings, task, base_ms, span_ms)
    faults = [fault for fault in FAULTS if random.random() < 0.3]
    return Plan(
        seed=seed,
        settings=settings,
        inputs=inputs,
        base_ms=base_ms,
        span_ms=span_ms,
        seconds=random.choice((3.0, 6.0)),
        n_tasks=n_tasks,
        n_machines=random.choice((1, 1, 2, 2, 3)),
        run=random.choice((1, 2, 3, 5)),
        chunk=random.choice((1, 2, 100)),
        memory_tier_bytes=random.choice((0, 0, 2_000, 1 << 40)),
        loop={
            "max_poll_records": random.choice((1, 3, 8, 20, 50)),
            "max_lead_ms": random.choice((0, 10, 100, 60_000)),
            "idle_ms": random.choice((200, 1_000)),
            "heartbeats": random.random() < 0.3,
            "heartbeat_outage_wait_ms": 600_000,
            "heartbeat_max_gap_ms": random.choice((10, 1_000, 86_400_000)),
            "checkpoint_interval_ms": random.choice((0, 0, 500, 2_000)),
        },
        release_timeout_seconds=random.choice((0.3, 3.0)),
        latency_seconds=random.choice((0.0, 0.01, 0.1, 0.3)),
        boundaries_per_life=random.choice((50, 150, 150, 400, None)),
        disk_loss_chance=random.choice((0.0, 0.4, 0.4)),
        events=tuple(event for event in EVENTS if random.random() < 0.4),
        chances={fault: FAULTS[fault] for fault in faults},
        retention=retention,
        kept_more_ms=kept_more_ms,
    )

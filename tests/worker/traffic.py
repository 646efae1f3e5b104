"""Hostile traffic for whole workers: many concurrent queries in the partitions of both inputs."""

from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from evaluator.core.types.records import Log
from tests.oracle.messages import Raw
from tests.oracle.oracle import Settings
from tests.oracle.worlds import CANDIDATES, NO_SKEW_LIMIT, Maker, populated
from tests.repeats import sized

LONG_AGO_MS = 1_000_000_000_000
"""A time so far behind every wall clock that no heartbeat is appended."""

N_QUERIES = sized(60, quick=16)

SETTINGS = Settings(
    retention_ms=60_000,
    maturity_ms=20_000,
    early_ms=2_000,
    remember_ms=10_000,
    out_of_orderness_ms=1_000,
    window_ms=10_000,
    measures=("top1", "hit@3", "mrr", "ndcg@10", "map"),
)


@dataclass(frozen=True)
class Traffic:
    """Records of one task in the order in which they are appended; their offsets are not used."""

    rankings: tuple[Raw, ...]
    judgments: tuple[Raw, ...]

    def part(self, begin: float, end: float) -> "Traffic":
        """The records between two fractions of both logs, 0 to 1."""
        return Traffic(*(
            log[int(begin * len(log)) : int(end * len(log))]
            for log in (self.rankings, self.judgments)
        ))  # fmt: skip

    def of(self, log: Log) -> tuple[Raw, ...]:
        return self.rankings if log == "rankings" else self.judgments


@lru_cache(maxsize=32)
def traffic(
    seed: int,
    *,
    n_queries: int = N_QUERIES,
    settings: Settings = SETTINGS,
    start_ms: int = LONG_AGO_MS,
    apart_ms: int = 1_000,
) -> Traffic:
    """Queries *apart_ms* apart, with duplicate, correcting, late, malformed and early records."""
    random = Random(seed)
    sizes = (0, 1, 2, 3, 5, 5, 5, 20)
    maker = Maker(random, settings, start_ms, NO_SKEW_LIMIT, CANDIDATES, sizes, 0.01)
    keys = [(f"t-{seed}-{i // 2}", f"n-{i % 2}") for i in range(n_queries)]
    starts = [(key, start_ms + i * apart_ms) for i, key in enumerate(keys)]
    world = populated(maker, starts, n_judgments=2 * n_queries)
    logs = (
        tuple(replace(raw, timestamp_ms=start_ms) if raw.timestamp_ms == -1 else raw for raw in log)
        for log in (world.rankings, world.judgments)
    )
    return Traffic(*logs)

"""Small hostile worlds: two logs of one task with times near every bound.

`world(random)` makes one from any source of randomness, such as a seed or Hypothesis. Values are
real JSON bytes. `World.cut` returns prefixes.
"""

import json
import random as random_module
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.oracle.measures import MEASURES
from tests.oracle.messages import (
    JudgmentsRecord,
    Log,
    RankingsRecord,
    Raw,
    read_judgments,
    read_rankings,
)
from tests.oracle.oracle import Settings, Task, judge

LAST_MOMENT_MS = 2**63 - 1
NO_SKEW_LIMIT = 2**64

# The fullwidth tilde and the emoji have another order in UTF-16 than in UTF-8.
CANDIDATES = ("a", "b", "aa", "é", "～", "😀", "tool/1", "a\0")
SCORES: tuple[float, ...] = (1, 1.0, 0, -0.0, 0.5, 2.5, -3, 1e300, 2**53 + 1, 1e-320)
GRADES: tuple[float | None, ...] = (
    0, 0, 1, 1, 2, 3, 0.5, 2.0, 31, -1, -0.0, None, None, 1e-9, 5e-324, 1.0000000000000002,
)  # fmt: skip
KEYS = (("t-1", "n-1"), ("t-1", "n-2"), ("t-é", "n-1"))
SCORERS = ("bm25", "ann", "Zz")
SUBTOPICS = ("x", "y", "é", "")
MALFORMED: dict[Log, dict[bytes, str]] = {
    "rankings": {
        b"": "decode",
        b"{": "decode",
        b"[]": "schema",
        b'{"schema_version": 1, "trace_id": "t-1", "node_id": "n-1", "timestamp_ms": 7}': "schema",
    },
    "judgments": {
        b"": "decode",
        b"\x00\x00\x00\x00\x07{}": "decode",
        b"null": "schema",
        b'{"schema_version": 1, "trace_id": "t-1", "node_id": "n-1", "timestamp_ms": 7, '
        b'"grades": {}}': "schema",
    },
}


@dataclass(frozen=True, slots=True)
class World:
    """Two logs, and the settings with which they are evaluated."""

    settings: Settings
    rankings: tuple[Raw, ...]
    judgments: tuple[Raw, ...]
    max_future_skew_ms: int = NO_SKEW_LIMIT

    def cut(self, n_rankings: int, n_judgments: int) -> "World":
        """The world with prefixes of both logs."""
        return replace(
            self, rankings=self.rankings[:n_rankings], judgments=self.judgments[:n_judgments]
        )

    def refuses_ranking(self, raw: Raw) -> str | None:
        return refuses("rankings", raw, self.max_future_skew_ms)

    def refuses_judgment(self, raw: Raw) -> str | None:
        return refuses("judgments", raw, self.max_future_skew_ms)

    def read_rankings(self) -> list[RankingsRecord]:
        return read_rankings(self.rankings, self.refuses_ranking)

    def read_judgments(self) -> list[JudgmentsRecord]:
        return read_judgments(self.judgments, self.refuses_judgment)

    def judge(self, *, at_end: bool = False) -> Task:
        """The oracle's task for the world."""
        return judge(*records_of(self), self.settings, at_end=at_end)


@lru_cache(maxsize=8)
def records_of(world: World) -> tuple[list[RankingsRecord], list[JudgmentsRecord]]:
    """Both logs as plain values, cached for all uses of a world; do not change them."""
    return world.read_rankings(), world.read_judgments()


def refuses(log: Log, raw: Raw, max_future_skew_ms: int) -> str | None:
    """The reason why a record of a generated world is malformed, or None."""
    value = raw.value or b""
    if value in MALFORMED[log]:
        return MALFORMED[log][value]
    stated_ms = json.loads(value).get("timestamp_ms")
    if raw.timestamp_ms is None or raw.timestamp_ms < 0:
        return "schema" if stated_ms is None else None
    if stated_ms is not None and stated_ms - raw.timestamp_ms > max_future_skew_ms:
        return "future"
    return None


# -- making worlds ------------------------------------------------------------------------------


def settings(random: Random) -> Settings:
    """Settings with short durations, some zero if allowed, rarely one beyond all integers."""
    retention_ms = random.choice((1, 2, random.randint(3, 50), random.randint(10, 50)))
    made = Settings(
        retention_ms=retention_ms,
        maturity_ms=random.choice((0, retention_ms, random.randint(0, retention_ms))),
        early_ms=random.choice((0, 1, random.randint(0, 20))),
        remember_ms=random.choice((0, 1, random.randint(0, 30))),
        out_of_orderness_ms=random.choice((0, 1, random.randint(0, 10))),
        window_ms=random.choice((1, random.randint(1, 20), 7)),
        measures=tuple(random.sample(MEASURES, random.randint(1, 4))),
        empty=random.choice(("zero", "zero", "zero", "skip")),
        judged_only=random.random() < 0.2,
        freshness_half_life_ms=random.choice((0, 0, 0, 1, 7, 1_000)),
        map_graded_max_grade=random.choice((2, 2, 1, 31)),
        err_max_grade=random.choice((4, 4, 1, 31)),
    )
    if random.randint(0, 24) == 0:
        name = random.choice(
            ("retention_ms", "early_ms", "remember_ms", "out_of_orderness_ms", "window_ms")
        )
        beyond: dict[str, Any] = {name: random.choice((2**62, 2**63 - 1, 2**63, 2**70))}
        made = replace(made, **beyond)
    return made


def with_limits(made: Settings, random: Random) -> Settings:
    """The same settings, often with limits so small that judgments exceed them."""
    return replace(
        made,
        max_applied=random.choice((1_000, 1_000, 1_000, 3)),
        max_graded=random.choice((10_000, 10_000, random.randint(1, 5))),
    )


Named = tuple[tuple[str, str], int]
"""A key and the time of a record with it."""


@dataclass(slots=True)
class Maker:
    """Draws the records of a world; times cluster around the bounds of its settings."""

    random: Random
    settings: Settings
    base_ms: int
    max_future_skew_ms: int
    candidates: Sequence[str] = CANDIDATES
    n_candidates: Sequence[int] = (0, 1, 2, 3, 5)
    far_share: float = 0.08  # share of records far out of order

    def moment(self, *moments_ms: int) -> int:
        """One of these times, give or take a millisecond; always a valid timestamp."""
        ms = self.random.choice(moments_ms) + self.random.choice((-1, 0, 0, 0, 1))
        return min(max(ms, 0), LAST_MOMENT_MS)

    def lifetimes(self, starts: Sequence[Named]) -> list[Named]:
        """Keys with the times of their records: some are repeated while reserved, some later."""
        s = self.settings
        named = []
        for key, start_ms in starts:
            at_ms = self.moment(start_ms)
            named.append((key, at_ms))
            for _ in range(self.random.choice((0, 0, 1, 2, 3))):
                at_ms = self.moment(
                    at_ms,
                    at_ms + 1,
                    at_ms + s.retention_ms,
                    at_ms + s.key_reserved_ms,
                    at_ms + s.key_reserved_ms + 1,
                    at_ms + s.key_reserved_ms + s.out_of_orderness_ms + 1,
                    at_ms + 2 * s.key_reserved_ms,
                )
                named.append((key, at_ms))
        return named

    def judgment_time(self, ranking_ms: int) -> int:
        s = self.settings
        return self.moment(
            ranking_ms - s.early_ms,
            ranking_ms,
            ranking_ms + s.maturity_ms,
            ranking_ms + s.maturity_ms,
            ranking_ms + s.retention_ms,
            ranking_ms + s.retention_ms + s.remember_ms,
            ranking_ms + s.key_reserved_ms,
            ranking_ms + self.random.randint(0, 40),
        )

    def heartbeat_time(self, ranking_ms: int) -> int:
        """A time near the deadline of a timer, for the smaller of both clocks."""
        s = self.settings
        beyond_ms = ranking_ms + s.out_of_orderness_ms
        start_ms = ranking_ms // s.window_ms * s.window_ms
        return self.moment(
            beyond_ms,
            beyond_ms + s.early_ms,
            beyond_ms + s.maturity_ms,
            beyond_ms + s.retention_ms,
            beyond_ms + s.key_reserved_ms,
            start_ms + s.window_ms + s.retention_ms + s.out_of_orderness_ms,
            beyond_ms + 3 * s.key_reserved_ms,
        )

    def text(self, message: dict[str, Any]) -> bytes:
        """A JSON object in one of its spellings."""
        separators = self.random.choice(((",", ":"), (", ", ": ")))
        ascii_only = self.random.random() < 0.3
        return json.dumps(message, ensure_ascii=ascii_only, separators=separators).encode()

    def stamped(self, message: dict[str, Any], at_ms: int) -> Raw:
        """A record with `timestamp_ms`, or with only its own timestamp; offsets are added later."""
        if self.random.random() < 0.75:
            message["timestamp_ms"] = at_ms
            skew_ms = self.random.choice((0, 0, 0, 3, -2))
            if self.max_future_skew_ms != NO_SKEW_LIMIT:
                skew_ms = self.random.choice(
                    (0, 0, -self.max_future_skew_ms, -self.max_future_skew_ms - 1)
                )
            record_ms = min(max(at_ms + skew_ms, 0), LAST_MOMENT_MS)
        else:
            record_ms = at_ms
        return Raw(0, record_ms, self.text(message), message["trace_id"].encode())

    def scores(self, n: int) -> list[float]:
        return [self.random.choice(SCORES) for _ in range(n)]

    def ranking(self, key: tuple[str, str], at_ms: int) -> Raw:
        ids = self.random.choices(self.candidates, k=self.random.choice(self.n_candidates))
        message: dict[str, Any] = {"schema_version": 1, "trace_id": key[0], "node_id": key[1]}
        message |= self.optional({"model": ("m-1", "m-2"), "variant": ("a", "b"), "query": ("q",)})
        form = self.random.choice(("scores", "scores", "scores", "ranks", "both", "rows"))
        if form == "rows":
            scores = self.scores(len(ids))
            message["candidates"] = [
                {"id": name, "score": score} for name, score in zip(ids, scores, strict=True)
            ]
        else:
            message["candidate_ids"] = ids
        if form in ("scores", "both"):
            message["scores"] = self.scores(len(ids))
        if form in ("ranks", "both"):
            message["ranks"] = [self.random.choice((1, 2, 2, 3, 9, 2**40)) for _ in ids]
        named = self.random.sample(SCORERS, self.random.choice((0, 0, 1, 2)))
        if named:
            message["scorers"] = {name: self.scores(len(ids)) for name in named}
        if self.random.random() < 0.4:
            message["subtopics"] = self.subtopics()
        if self.random.random() < 0.5:
            ages = [self.random.choice((-3, 0, 1, 5, 900, 10**6, None)) for _ in ids]
            times = [
                None if age is None else min(max(at_ms - age, 0), LAST_MOMENT_MS) for age in ages
            ]
            if form == "rows":
                for row, published_ms in zip(message["candidates"], times, strict=True):
                    row["published_ms"] = published_ms
            else:
                message["published_ms"] = times
        return self.stamped(message, at_ms)

    def subtopics(self) -> dict[str, list[str] | None]:
        """Subtopics of some candidates, ranked or not."""
        names = self.random.sample(self.candidates[:8], self.random.choice((1, 3, 5)))
        return {
            name: self.random.choice((None, [], self.random.choices(SUBTOPICS, k=3)))
            if self.random.random() < 0.3
            else self.random.sample(SUBTOPICS, self.random.choice((1, 2, 3)))
            for name in names
        }

    def judgment(self, key: tuple[str, str], at_ms: int) -> Raw:
        few = self.candidates[: self.random.choice((3, len(self.candidates)))]
        names = self.random.sample(few, self.random.choice((1, 1, 2, 3)))
        message: dict[str, Any] = {
            "schema_version": 1,
            "trace_id": key[0],
            "node_id": key[1],
            "grades": {name: self.grade() for name in names},
        }
        if self.random.random() < 0.15:  # withdraws all earlier grades
            message["grades"] = {
                name: self.random.choice((None, None, None, -1)) for name in self.candidates
            }
        if self.random.random() < 0.3:
            message["subtopics"] = self.subtopics()
        message |= self.optional({"source": ("human", "click"), "judgment_id": ("j-1", "j-2")})
        return self.stamped(message, at_ms)

    def grade(self) -> float | None:
        fractional = self.random.choice((4.0, 31.0)) * self.random.random()
        return self.random.choice((*GRADES, fractional, round(fractional, 1)))

    def optional(self, choices: dict[str, tuple[str, ...]]) -> dict[str, str | None]:
        """Members that are present, missing, or null."""
        message: dict[str, str | None] = {}
        for name, values in choices.items():
            if self.random.random() < 0.6:
                message[name] = self.random.choice((*values, *values, None))
        return message

    def log(self, log: Log, messages: list[tuple[int, Raw]], near_ms: list[int]) -> tuple[Raw, ...]:
        """*messages* (time, record) with duplicates, heartbeats and malformed records, shuffled."""
        placed = list(messages)
        for at_ms, raw in messages:
            if self.random.random() < 0.25:  # a duplicate, soon or much later
                later_ms = max(
                    at_ms, self.random.choice((0, at_ms + 3, self.random.choice(near_ms)))
                )
                record_ms = self.random.choice((raw.timestamp_ms, self.moment(later_ms)))
                placed.append((later_ms, replace(raw, timestamp_ms=record_ms)))
        for _ in range(self.random.choice((0, 1, 1, 2, 4))):
            at_ms = self.heartbeat_time(self.random.choice(near_ms))
            placed.append((at_ms, Raw(0, at_ms, None)))
        for _ in range(self.random.choice((0, 0, 1, 2))):
            value = self.random.choice(list(MALFORMED[log]))
            at_ms = self.moment(*near_ms, LAST_MOMENT_MS)
            placed.append((self.random.choice(near_ms), Raw(0, at_ms, value)))
        return self.numbered(placed)

    def numbered(self, placed: list[tuple[int, Raw]]) -> tuple[Raw, ...]:
        """Mostly in order, else late by about the bound, rarely by far; offsets have gaps."""
        late_ms = self.settings.out_of_orderness_ms

        def place(at_ms: int) -> int:
            is_far = self.random.random() < self.far_share
            far_ms = self.random.randint(-80, 80) if is_far else 0
            return at_ms + self.random.choice((0, 0, 0, late_ms, late_ms + 1, -late_ms)) + far_ms

        ordered = [raw for _, raw in sorted(((place(at), raw) for at, raw in placed), key=first)]
        offset = self.random.choice((0, 0, 5, 2**40))
        numbered = []
        for raw in ordered:
            record_ms = -1 if self.random.random() < 0.02 else raw.timestamp_ms  # no timestamp
            numbered.append(replace(raw, offset=offset, timestamp_ms=record_ms))
            offset += self.random.choice((1, 1, 1, 2, 5))
        return tuple(numbered)


def first(pair: tuple[int, Raw]) -> int:
    return pair[0]


def world(random: Random) -> World:
    """A small hostile world."""
    base_ms = random.choice((0, 1_000, 1_000, 1_763_690_000_000, 2**53, LAST_MOMENT_MS - 400))
    skew_ms = random.choice((NO_SKEW_LIMIT, NO_SKEW_LIMIT, NO_SKEW_LIMIT, 4))
    maker = Maker(random, with_limits(settings(random), random), base_ms, skew_ms)
    keys = KEYS[: random.randint(1, len(KEYS))]
    starts = [(key, base_ms + random.choice((0, random.randint(0, 30)))) for key in keys]
    return populated(maker, starts, n_judgments=random.choice((0, 1, 3, 6, 9, 14)))


def crowd(random: Random, n_queries: int = 300) -> World:
    """A world of many concurrent queries, some of them long, so that batches are full."""
    made = replace(
        settings(random),
        retention_ms=random.randint(50, 2_000),
        maturity_ms=random.randint(0, 50),
        window_ms=random.randint(1, 500),
        measures=tuple(random.sample(MEASURES, 3)),
    )
    pool = [*CANDIDATES, *(f"c-{i}" for i in range(1_000))]
    usual = random.choice((3, 20))
    sizes = (*[usual] * 30, 0, 1, 5, 5, 200, 1_000)
    maker = Maker(random, made, 1_000_000, NO_SKEW_LIMIT, pool[: usual * 3], sizes, 0.001)
    keys = [(f"t-{i // 2}", f"n-{i % 2}") for i in range(n_queries)]
    starts = [(key, maker.base_ms + i * random.choice((3, 3, 4))) for i, key in enumerate(keys)]
    return populated(maker, starts, n_judgments=2 * n_queries)


def populated(maker: Maker, starts: Sequence[Named], n_judgments: int) -> World:
    """A world with rankings of these keys, judgments of these rankings, and other records."""
    random = maker.random
    lifetimes = maker.lifetimes(starts)
    near_ms = [at_ms for _, at_ms in lifetimes]
    rankings = [(at_ms, maker.ranking(key, at_ms)) for key, at_ms in lifetimes]
    judgments = []
    for _ in range(n_judgments):
        key, ranking_ms = random.choice(lifetimes)
        at_ms = maker.judgment_time(ranking_ms)
        judgments.append((at_ms, maker.judgment(key, at_ms)))
    return World(
        settings=maker.settings,
        rankings=maker.log("rankings", rankings, near_ms),
        judgments=maker.log("judgments", judgments, near_ms),
        max_future_skew_ms=maker.max_future_skew_ms,
    )


def seeded_world(seed: int) -> World:
    """The same world for the same seed."""
    return world(random_module.Random(seed))


def worlds() -> st.SearchStrategy[World]:
    """Worlds for Hypothesis."""
    return st.randoms(use_true_random=False).map(world)

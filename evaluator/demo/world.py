"""The traffic of the demo: eight hours, three recommenders, a regression, all kinds of faults."""

import heapq
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from evaluator.core.alarms.ticks import HOUR_MS
from evaluator.core.types.records import Log

START_MS: Final = 1_763_676_000_000
SPAN_MS: Final = 8 * HOUR_MS
REGRESSION_MS: Final = START_MS + SPAN_MS // 2
N_QUERIES: Final = 40_000
RETENTION_MS: Final = 2 * HOUR_MS
SETTINGS: Final[Mapping[str, Any]] = {
    "retention_ms": RETENTION_MS,
    "learning": "auto",
    "source_weights": (("human", 1.0), ("llm-judge", 0.8), ("click", 0.3)),
    "learning_interval_ms": HOUR_MS // 4,
    "gate": "quick",
    "gate_alpha": 0.01,
    "gate_min_traces": 300,
    "gate_min_age_ms": 4 * HOUR_MS,
    "gate_max_age_ms": 40 * HOUR_MS,
    "gate_cool_down_ms": HOUR_MS // 2,
}
"""Settings of the demo, so that late judgments, final windows and promotions occur within eight
hours: in production an experiment takes days. The first promotion is in the second half, so that a
Prometheus that starts with the demo has the counters from before it."""

FEATURE_NAMES: Final = ["phi_rel", "phi_hist", "phi_coop", "phi_struct"]

FAULTS: Final[Mapping[str, float]] = {
    "duplicate ranking": 0.003,
    "conflicting ranking": 0.001,
    "malformed ranking": 0.0015,
    "duplicate judgment": 0.004,
    "conflicting judgment": 0.001,
    "corrected judgment": 0.02,
    "withdrawn judgment": 0.004,
    "early judgment": 0.01,
    "late judgment": 0.003,
    "out of order judgment": 0.001,
    "orphan judgment": 0.002,
    "malformed judgment": 0.0015,
}
"""The frequency of each fault per query."""


class DemoMessage(NamedTuple):
    """A message of the broker. *kind* is its intended kind, for tests."""

    log: Log
    key: bytes | None
    value: bytes
    timestamp_ms: int  # of the record
    kind: str


class Recommender(NamedTuple):
    """A (model, variant) with its share of the traffic.

    *noise* is the standard deviation of its scores from the true grades, before and after the
    regression.
    """

    model: str
    variant: str
    share: float
    noise: tuple[float, float]


RECOMMENDERS: Final = (
    Recommender("tool-ranker", "prod", 0.5, (0.8, 0.8)),
    Recommender("tool-ranker", "canary", 0.2, (0.7, 1.8)),
    Recommender("graph-ranker", "prod", 0.3, (0.95, 0.95)),
)
REGRESSED: Final = next(each for each in RECOMMENDERS if each.noise[0] != each.noise[1])
BM25_NOISE: Final = 1.4

_INTENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "flights": ("book a flight to {}", "find the cheapest flight to {}", "rebook my flight to {}"),
    "hotels": ("find a quiet hotel in {}", "cancel my room in {}", "compare hotels in {}"),
    "weather": ("will it rain in {} tomorrow", "weather in {} this weekend"),
    "trains": ("next train to {}", "reserve a seat to {}", "is the train to {} late"),
    "calendar": ("put the trip to {} into my calendar", "when do I fly to {}"),
    "expenses": ("file the receipt from {}", "what did the week in {} cost"),
    "restaurants": ("a table for four in {}", "vegetarian dinner in {}"),
}
_VERBS: Final = ("search", "get", "book", "cancel", "compare", "share")
_PLACES: Final = ("Lisbon", "Oslo", "Kyoto", "Turin", "Quito", "Tunis", "Leeds", "Graz")
_LOCALES: Final = ("de", "en", "fr", "pt")
_TOOLS: Final = {domain: [f"{verb}_{domain}" for verb in _VERBS] for domain in _INTENTS}
_GRAPHS: Final = {
    domain: [f"search_{domain}>{verb}_{domain}" for verb in _VERBS[1:]] + [f"ask_user>{domain}"]
    for domain in _INTENTS
}


class _Query(NamedTuple):
    """The facts about a query that determine its judgments."""

    trace_id: str
    node_id: str
    timestamp_ms: int
    truth: dict[str, int]  # the true grade of each candidate, in served order


class DemoWorld(Struct, frozen=True):
    """Eight hours of traffic; the same messages for the same arguments.

    Iterating yields the messages of both logs in order of arrival, and may be repeated. The
    regression is at REGRESSION_MS.
    """

    seed: int
    n_queries: int = N_QUERIES

    def __iter__(self) -> Iterator[DemoMessage]:
        random = Random(self.seed)
        due: list[tuple[int, int, DemoMessage]] = []  # (arrival, a number that breaks ties, ...)
        made = 0
        for number in range(self.n_queries):
            now_ms = START_MS + number * SPAN_MS // self.n_queries
            for arrival_ms, message in self._messages(number, now_ms, random):
                made += 1
                heapq.heappush(due, (arrival_ms, made, message))
            while due and due[0][0] <= now_ms + _EARLIEST_MS:
                yield heapq.heappop(due)[2]
        while due:
            arrival_ms, _, message = heapq.heappop(due)
            if arrival_ms <= START_MS + SPAN_MS:
                yield message

    def _messages(
        self, number: int, now_ms: int, random: Random
    ) -> Iterator[tuple[int, DemoMessage]]:
        """All messages of a query with the times of their arrival."""
        query, ranking = self._ranking(number, now_ms, random)
        key = query.trace_id.encode()
        yield now_ms, DemoMessage("rankings", key, ranking, now_ms, "ranking")
        if _happens("duplicate ranking", random):
            later_ms = now_ms + random.randrange(100, 5_000)
            yield later_ms, DemoMessage("rankings", key, ranking, later_ms, "duplicate ranking")
        if _happens("conflicting ranking", random):
            other = _with_members(ranking, query=f"retry {number}")
            later_ms = now_ms + random.randrange(100, 5_000)
            yield later_ms, DemoMessage("rankings", key, other, later_ms, "conflicting ranking")
        yield from _malformed("rankings", number, ranking, now_ms, random)
        yield from self._judgments(number, query, random)

    def _ranking(self, number: int, now_ms: int, random: Random) -> tuple[_Query, bytes]:
        """The facts and the ranking message of a query."""
        recommender = random.choices(RECOMMENDERS, [r.share for r in RECOMMENDERS])[0]
        domain = random.choice(list(_INTENTS))
        pool = _GRAPHS if recommender.model == "graph-ranker" else _TOOLS
        candidates = _candidates(pool, domain, random)
        truth = _true_grades(candidates, pool[domain], random)
        noise = recommender.noise[now_ms >= REGRESSION_MS]
        served = [round(grade + random.gauss(0, noise), 4) for grade in truth]
        bm25 = [round(4 + 2 * (grade + random.gauss(0, BM25_NOISE)), 3) for grade in truth]
        features = [_FEATURES[grade][int(random.random() * _N_FEATURE_ROWS)] for grade in truth]
        trip, node = divmod(number, 2)
        trace_id, node_id = f"{zlib.crc32(b'trip-%d' % trip):08x}-{trip}", f"plan/{node}"
        message = {
            "schema_version": 1,
            "trace_id": trace_id,
            "node_id": node_id,
            "timestamp_ms": now_ms,
            "model": recommender.model,
            "variant": recommender.variant,
            "query": random.choice(_INTENTS[domain]).format(random.choice(_PLACES)),
            "candidate_ids": candidates,
            "scores": served,
            "scorers": {"bm25": bm25},
            "feature_names": FEATURE_NAMES,
            "features": features,
            "segments": {"locale": random.choice(_LOCALES)},
        }
        order = sorted(range(len(candidates)), key=lambda i: -served[i])
        by_rank = {candidates[i]: truth[i] for i in order}
        return _Query(trace_id, node_id, now_ms, by_rank), msgspec.json.encode(message)

    def _judgments(
        self, number: int, query: _Query, random: Random
    ) -> Iterator[tuple[int, DemoMessage]]:
        if random.random() < 0.55 and (clicks := _click(query.truth, random)):
            # Deeper clicks are later, so the delay depends on the outcome.
            delay_ms = int(random.expovariate(1 / 40_000) + 4_000 * len(clicks))
            yield _judged(query, delay_ms, "click", f"c-{number}", clicks)
        if random.random() < 0.5:
            grades = {name: _seen(grade, random) for name, grade in list(query.truth.items())[:8]}
            delay_ms = random.randrange(60_000, 600_000)
            yield _judged(query, delay_ms, "llm-judge", f"l-{number}", grades)
        if random.random() < 0.2:
            yield from self._human(number, query, random)
        yield from self._judgment_faults(number, query, random)

    def _human(
        self, number: int, query: _Query, random: Random
    ) -> Iterator[tuple[int, DemoMessage]]:
        """A judgment after 2 to 90 minutes; some are corrected or withdrawn later."""
        delay_ms = int(math.exp(random.uniform(math.log(2 * 60_000), math.log(90 * 60_000))))
        grades: dict[str, int | None] = dict(query.truth)
        if random.random() < 0.1:
            grades["call_a_colleague"] = 2  # relevant, never ranked
        arrival_ms, message = _judged(query, delay_ms, "human", f"h-{number}", grades)
        yield arrival_ms, message
        better = {name: min(3, (grade or 0) + 1) for name, grade in grades.items()}
        changes = (
            ("corrected judgment", 2, better),
            ("withdrawn judgment", 3, dict.fromkeys(grades)),
        )
        for fault, place, changed in changes:
            if _happens(fault, random, scale=5):
                later_ms = delay_ms + random.randrange(60_000, 900_000)
                yield _judged(query, later_ms, "human", f"h-{number}-{place}", changed, fault)
        again = message._replace(timestamp_ms=arrival_ms + 2_000)
        if _happens("duplicate judgment", random, scale=5):
            yield again.timestamp_ms, again._replace(kind="duplicate judgment")
        if _happens("conflicting judgment", random, scale=5):
            other = _with_members(message.value, source="human-2")
            yield again.timestamp_ms, again._replace(value=other, kind="conflicting judgment")

    def _judgment_faults(
        self, number: int, query: _Query, random: Random
    ) -> Iterator[tuple[int, DemoMessage]]:
        grades = _click(query.truth, random) or {next(iter(query.truth)): 0}
        if _happens("early judgment", random):
            delay_ms = -random.randrange(500, -_EARLIEST_MS)
            yield _judged(query, delay_ms, "click", f"e-{number}", grades, "early judgment")
        if _happens("late judgment", random):
            delay_ms = RETENTION_MS + random.randrange(60_000, HOUR_MS - 60_000)
            yield _judged(query, delay_ms, "human", f"t-{number}", grades, "late judgment")
        if _happens("out of order judgment", random):
            arrival_ms, message = _judged(query, 20_000, "click", f"o-{number}", grades)
            arrival_ms += random.randrange(600_000, 1_500_000)
            message = message._replace(timestamp_ms=arrival_ms, kind="out of order judgment")
            yield arrival_ms, message
        if _happens("orphan judgment", random):
            lost = query._replace(trace_id=f"lost-{number}")
            yield _judged(lost, 30_000, "click", f"x-{number}", grades, "orphan judgment")
        value = _judged(query, 25_000, "click", f"m-{number}", grades)[1].value
        yield from _malformed("judgments", number, value, query.timestamp_ms + 25_000, random)


_EARLIEST_MS: Final = -45_000  # an early judgment, before its ranking


def _happens(fault: str, random: Random, *, scale: float = 1) -> bool:
    return random.random() < scale * FAULTS[fault]


def _with_members(value: bytes, **members: object) -> bytes:
    """The message with other members; NaN and Infinity are not replaced."""
    return json.dumps(json.loads(value) | members, separators=(",", ":")).encode()


def _candidates(pool: Mapping[str, Sequence[str]], domain: str, random: Random) -> list[str]:
    """5 to 20 names, 2 or more of the domain, shuffled."""
    own = random.sample(pool[domain], random.randint(2, len(pool[domain])))
    others = [name for other in pool if other != domain for name in pool[other]]
    n_others = random.randint(max(0, 5 - len(own)), 20 - len(own))
    candidates = own + random.sample(others, n_others)
    random.shuffle(candidates)
    return candidates


def _true_grades(candidates: Sequence[str], own: Sequence[str], random: Random) -> list[int]:
    """The grades of candidates: one is 3, others of the domain 0 to 2, all others 0."""
    right = random.choice([name for name in candidates if name in own])
    return [
        3 if name == right else random.choice((0, 1, 1, 2)) if name in own else 0
        for name in candidates
    ]


def _feature_rows(grade: int, random: Random) -> list[list[float]]:
    """Possible features of a candidate with this grade."""
    return [
        [
            round(min(1.0, max(0.0, random.gauss(0.15 + 0.2 * grade, 0.15))), 3)
            for _ in FEATURE_NAMES
        ]
        for _ in range(_N_FEATURE_ROWS)
    ]


_N_FEATURE_ROWS: Final = 256
_FEATURES: Final = [_feature_rows(grade, Random(grade)) for grade in range(4)]


def _click(truth: Mapping[str, int], random: Random) -> dict[str, int | None]:
    """Grades of a click: 1 for the clicked candidate, 0 for those above; empty without a click."""
    passed: dict[str, int | None] = {}
    for name, grade in truth.items():
        passed[name] = 0
        if random.random() < (0.02, 0.15, 0.4, 0.85)[grade]:
            passed[name] = 1
            return passed
    return {}


def _seen(grade: int, random: Random) -> int | None:
    """The grade of a judge with an error rate of 0.25."""
    return min(3, max(0, grade + random.choice((-1, 1)))) if random.random() < 0.25 else grade


def _judged(
    query: _Query,
    delay_ms: int,
    source: str,
    judgment_id: str,
    grades: Mapping[str, int | None],
    kind: str = "judgment",
) -> tuple[int, DemoMessage]:
    timestamp_ms = query.timestamp_ms + delay_ms
    message = {
        "schema_version": 1,
        "trace_id": query.trace_id,
        "node_id": query.node_id,
        "timestamp_ms": timestamp_ms,
        "source": source,
        "grades": grades,
        "judgment_id": judgment_id,
    }
    key, value = query.trace_id.encode(), msgspec.json.encode(message)
    return timestamp_ms, DemoMessage("judgments", key, value, timestamp_ms, kind)


_BREAKAGES: Final[Sequence[Callable[[bytes], bytes]]] = (
    lambda value: value[: len(value) // 2],
    lambda value: value[:0],
    lambda value: b"\x00\x00\x00\x00\x07" + value,
    lambda value: value.replace(b'"node_id":"', b'"node_id":"\xff'),
    lambda value: _with_members(value, schema_version=2),
    lambda value: _with_members(value, trace_id=17),
    lambda value: _with_members(value, scores=["1.7"], grades={"book_hotels": "good"}),
    lambda value: _with_members(value, scores=[1e308, 2.0], grades={}),
    lambda value: _with_members(value, grades={"book_hotels": 1e9}, scores=[0.5] * 1001),
    lambda value: _with_members(value, scores=[math.nan], grades={"book_hotels": math.inf}),
    lambda value: _with_members(value, timestamp_ms=-5),
    lambda value: _with_members(value, timestamp_ms=START_MS * 2),
)
"""Ways to make a message of either log malformed."""


def _malformed(
    log: Log, number: int, value: bytes, arrival_ms: int, random: Random
) -> Iterator[tuple[int, DemoMessage]]:
    """An additional malformed message, with the probability of this fault."""
    kind = "malformed ranking" if log == "rankings" else "malformed judgment"
    if _happens(kind, random):
        spoiled = random.choice(_BREAKAGES)(value)
        key = b"spoiled-%d" % number
        yield arrival_ms, DemoMessage(log, key, spoiled, arrival_ms, kind)

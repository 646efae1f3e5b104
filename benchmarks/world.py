"""The traffic that every benchmark runs on: pairs of a ranking and its judgment, seeded.

A ranking has 20 candidates, 4 features each and one named scorer beside the served one, about
1.5 kB of JSON; its judgment grades five candidates between seconds and forty minutes later.
Event time spans three hours, so that at the default maturity more than half of all queries
settle while the traffic is read. No ties, no duplicates: this is the ordinary way.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPAN_MS = 3 * 3_600_000
START_MS = 1_763_690_000_000
N_CANDIDATES = 20
N_FEATURES = 4
N_GRADES = 5
DELAYS_MS = (5_000, 40 * 60_000)  # log-uniform between
MODEL = "tool-ranker"
VARIANTS = ("prod", "canary")
CANARY_SHARE = 0.2
NEVER_RANKED_SHARE = 1 / 16  # of the judgments name a candidate that the ranking lacks
_SLICE = 4_096
_SCORES = [repr(i / 10_000) for i in range(65_536)]
_FEATURES = [repr(i / 1_000) for i in range(1_001)]
_VERBS = (
    "search get create update delete list book cancel send read share export convert translate "
    "summarize rank plan track"
).split()
_NOUNS = "flights hotels weather mail calendar orders invoices users tickets files routes".split()
TOOLS = [f"{verb}_{noun}" for verb in _VERBS for noun in _NOUNS] + ["ask_a_person"]  # 199, a prime
_SUBJECTS = ("the cheapest flight", "a quiet hotel", "last week's invoices", "open tickets")


class Message(NamedTuple):
    """A message as its producer sends it."""

    timestamp_ms: int
    key: bytes
    value: bytes


class World(NamedTuple):
    """Both logs, each in the order of its timestamps; message i of one is not of the other."""

    rankings: list[Message]
    judgments: list[Message]


def make_world(n_pairs: int, *, seed: int = 1) -> World:
    """*n_pairs* rankings with one judgment each; the same bytes for the same arguments."""
    rankings: list[Message] = []
    judgments: list[Message] = []
    step_ms = SPAN_MS / n_pairs
    for first in range(0, n_pairs, _SLICE):
        rows = range(first, min(first + _SLICE, n_pairs))
        for ranking, judgment in _pairs(rows, step_ms, np.random.default_rng([seed, first])):
            rankings.append(ranking)
            judgments.append(judgment)
    judgments.sort(key=lambda message: message.timestamp_ms)
    return World(rankings, judgments)


def _pairs(
    rows: range, step_ms: float, rng: np.random.Generator
) -> Iterator[tuple[Message, Message]]:
    n = len(rows)
    times = (START_MS + step_ms * np.arange(rows.start, rows.stop)).astype(np.int64).tolist()
    low, high = np.log(DELAYS_MS)
    delays = np.exp(rng.uniform(low, high, n)).astype(np.int64).tolist()
    firsts, strides = rng.integers(0, len(TOOLS), n), rng.integers(1, len(TOOLS), n)
    steps = np.arange(N_CANDIDATES + 1)
    tools = ((firsts[:, None] + strides[:, None] * steps) % len(TOOLS)).tolist()
    served, bm25 = _distinct(n, rng).tolist(), _distinct(n, rng).tolist()
    features = rng.integers(0, len(_FEATURES), (n, N_CANDIDATES, N_FEATURES)).tolist()
    judged = np.argsort(rng.random((n, N_CANDIDATES)), axis=1)[:, :N_GRADES]
    judged[rng.random(n) < NEVER_RANKED_SHARE, 0] = N_CANDIDATES
    grades = rng.choice(4, (n, N_GRADES), p=(0.5, 0.25, 0.15, 0.1)).tolist()
    canary = (rng.random(n) < CANARY_SHARE).tolist()
    traces = [rng.bytes(16).hex() for _ in rows]
    for i, row in enumerate(rows):
        names = [TOOLS[tool] for tool in tools[i]]
        judged_ms = times[i] + delays[i]
        judged_names = [names[j] for j in judged[i]]
        yield (
            Message(
                times[i],
                traces[i].encode(),
                _ranking(
                    row,
                    traces[i],
                    times[i],
                    VARIANTS[canary[i]],
                    names[:-1],
                    served[i],
                    bm25[i],
                    features[i],
                ),
            ),
            Message(
                judged_ms,
                traces[i].encode(),
                _judgment(row, traces[i], judged_ms, judged_names, grades[i]),
            ),
        )


def _distinct(n_lists: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Indices into the table of scores, `[n_lists, N_CANDIDATES]`, none twice in a list."""
    scores = rng.integers(0, len(_SCORES), (n_lists, N_CANDIDATES))
    while True:
        tied = (np.diff(np.sort(scores, axis=1), axis=1) == 0).any(axis=1)
        if not tied.any():
            return scores
        scores[tied] = rng.integers(0, len(_SCORES), (int(tied.sum()), N_CANDIDATES))


def _ranking(
    row: int,
    trace_id: str,
    timestamp_ms: int,
    variant: str,
    names: list[str],
    served: list[int],
    bm25: list[int],
    features: list[list[int]],
) -> bytes:
    ids = '","'.join(names)
    scores = ",".join([_SCORES[i] for i in served])
    others = ",".join([_SCORES[i] for i in bm25])
    rows = "],[".join([",".join([_FEATURES[i] for i in values]) for values in features])
    subject = _SUBJECTS[row % len(_SUBJECTS)]
    return (
        f'{{"schema_version":1,"trace_id":"{trace_id}","node_id":"plan/{row % 7}",'
        f'"timestamp_ms":{timestamp_ms},"model":"{MODEL}","variant":"{variant}",'
        f'"query":"find {subject} for request {row}","candidate_ids":["{ids}"],'
        f'"scores":[{scores}],"scorers":{{"bm25":[{others}]}},'
        f'"feature_names":["phi_rel","phi_hist","phi_coop","phi_struct"],'
        f'"features":[[{rows}]],"segments":{{"locale":"de"}}}}'
    ).encode()


def _judgment(
    row: int, trace_id: str, timestamp_ms: int, names: list[str], grades: list[int]
) -> bytes:
    members = ",".join([f'"{name}":{grade}' for name, grade in zip(names, grades, strict=True)])
    return (
        f'{{"schema_version":1,"trace_id":"{trace_id}","node_id":"plan/{row % 7}",'
        f'"timestamp_ms":{timestamp_ms},"source":"human","grades":{{{members}}},'
        f'"judgment_id":"j-{row}"}}'
    ).encode()

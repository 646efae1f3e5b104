"""The traffic of every benchmark: pairs of a ranking and its judgment, seeded.

By default a ranking has 20 candidates, 4 features each and one named scorer in addition to the
served one, about 1.5 kB of JSON; its judgment grades five candidates between seconds and forty
minutes later. Event time spans three hours, so that at the default maturity more than half of all
queries settle while the traffic is read. There are no ties and no duplicates, so it takes the fast
path.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SPAN_MS = 3 * 3_600_000
START_MS = 1_763_690_000_000
N_FEATURES = 4
N_GRADES = 5
DELAYS_MS = (5_000, 40 * 60_000)  # log-uniform between
MODEL = "tool-ranker"
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
_TOOLS = [f"{verb}_{noun}" for verb in _VERBS for noun in _NOUNS] + ["ask_a_person"]  # 199, a prime
_MORE_TOOLS = _TOOLS + [f"tool_{number}" for number in range(1_009 - len(_TOOLS))]  # a prime again
_SUBJECTS = ("the cheapest flight", "a quiet hotel", "last week's invoices", "open tickets")


class Shape(NamedTuple):
    """The shape of the messages of a world; at most 1,000 candidates."""

    candidates: int = 20
    scorers: tuple[str, ...] = ("bm25",)
    variants: tuple[str, ...] = ("prod", "canary")
    """The last one has a fifth of the traffic if there are two; more share it evenly."""

    @property
    def tools(self) -> list[str]:
        """The names from which candidates are drawn, a prime number of them."""
        return _TOOLS if self.candidates < len(_TOOLS) else _MORE_TOOLS


USUAL = Shape()


class Message(NamedTuple):
    """A message as its producer sends it."""

    timestamp_ms: int
    key: bytes
    value: bytes


class World(NamedTuple):
    """Both logs, each in the order of its timestamps; message i of one is not of the other."""

    rankings: list[Message]
    judgments: list[Message]


def make_world(n_pairs: int, *, seed: int = 1, shape: Shape = USUAL) -> World:
    """*n_pairs* rankings with one judgment each; the same bytes for the same arguments."""
    rankings: list[Message] = []
    judgments: list[Message] = []
    step_ms = SPAN_MS / n_pairs
    for first in range(0, n_pairs, _SLICE):
        rows = range(first, min(first + _SLICE, n_pairs))
        for ranking, judgment in _pairs(rows, step_ms, shape, np.random.default_rng([seed, first])):
            rankings.append(ranking)
            judgments.append(judgment)
    judgments.sort(key=lambda message: message.timestamp_ms)
    return World(rankings, judgments)


def _pairs(
    rows: range, step_ms: float, shape: Shape, rng: np.random.Generator
) -> Iterator[tuple[Message, Message]]:
    n, pool = len(rows), shape.tools
    size = n, shape.candidates
    n_grades = min(N_GRADES, shape.candidates)
    times = (START_MS + step_ms * np.arange(rows.start, rows.stop)).astype(np.int64).tolist()
    low, high = np.log(DELAYS_MS)
    delays = np.exp(rng.uniform(low, high, n)).astype(np.int64).tolist()
    firsts, strides = rng.integers(0, len(pool), n), rng.integers(1, len(pool), n)
    steps = np.arange(shape.candidates + 1)
    tools = ((firsts[:, None] + strides[:, None] * steps) % len(pool)).tolist()
    scores = {name: _distinct(size, rng).tolist() for name in ("", *shape.scorers)}
    features = rng.integers(0, len(_FEATURES), (*size, N_FEATURES)).tolist()
    judged = np.argsort(rng.random(size), axis=1)[:, :n_grades]
    judged[rng.random(n) < NEVER_RANKED_SHARE, 0] = shape.candidates
    grades = rng.choice(4, (n, n_grades), p=(0.5, 0.25, 0.15, 0.1)).tolist()
    variants = _variants(shape.variants, rng.random(n))
    traces = [rng.bytes(16).hex() for _ in rows]
    for i, row in enumerate(rows):
        names = [pool[tool] for tool in tools[i]]
        judged_ms = times[i] + delays[i]
        head = _head(row, traces[i], times[i])
        of_row = {name: values[i] for name, values in scores.items()}
        ranking = _ranking(row, head, variants[i], names[:-1], of_row, features[i])
        head = _head(row, traces[i], judged_ms)
        judgment = _judgment(row, head, [names[j] for j in judged[i]], grades[i])
        yield (
            Message(times[i], traces[i].encode(), ranking),
            Message(judged_ms, traces[i].encode(), judgment),
        )


def _variants(names: tuple[str, ...], drawn: NDArray[np.float64]) -> list[str]:
    if len(names) == 2:
        return [names[canary] for canary in (drawn < CANARY_SHARE).tolist()]
    return [names[place] for place in (drawn * len(names)).astype(np.int64).tolist()]


def _distinct(size: tuple[int, int], rng: np.random.Generator) -> NDArray[np.int64]:
    """Indices into the table of scores, of this shape, none twice in a row."""
    scores = rng.integers(0, len(_SCORES), size)
    tied = (np.diff(np.sort(scores, axis=1), axis=1) == 0).any(axis=1)
    for row in np.flatnonzero(tied).tolist():
        scores[row] = rng.choice(len(_SCORES), size[1], replace=False)
    return scores


def _head(row: int, trace_id: str, timestamp_ms: int) -> str:
    return (
        f'{{"schema_version":1,"trace_id":"{trace_id}","node_id":"plan/{row % 7}",'
        f'"timestamp_ms":{timestamp_ms},'
    )


def _ranking(
    row: int,
    head: str,
    variant: str,
    names: list[str],
    scores: dict[str, list[int]],
    features: list[list[int]],
) -> bytes:
    ids = '","'.join(names)
    served, *others = (",".join([_SCORES[i] for i in of]) for of in scores.values())
    named = ",".join(
        f'"{name}":[{text}]' for name, text in zip(list(scores)[1:], others, strict=True)
    )
    scorers = f'"scorers":{{{named}}},' if named else ""
    rows = "],[".join([",".join([_FEATURES[i] for i in values]) for values in features])
    subject = _SUBJECTS[row % len(_SUBJECTS)]
    return (
        f'{head}"model":"{MODEL}","variant":"{variant}",'
        f'"query":"find {subject} for request {row}","candidate_ids":["{ids}"],'
        f'"scores":[{served}],{scorers}'
        f'"feature_names":["phi_rel","phi_hist","phi_coop","phi_struct"],'
        f'"features":[[{rows}]],"segments":{{"locale":"de"}}}}'
    ).encode()


def _judgment(row: int, head: str, names: list[str], grades: list[int]) -> bytes:
    members = ",".join([f'"{name}":{grade}' for name, grade in zip(names, grades, strict=True)])
    return f'{head}"source":"human","grades":{{{members}}},"judgment_id":"j-{row}"}}'.encode()

"""Seeded worlds of settled queries with described candidates: tools and graphs."""

from collections.abc import Callable
from random import Random

import numpy as np

from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.types.candidates import Described, Graph
from tests.core.learned import numbered, settled_query

QUALITY = {f"tool_{i}": (i + 1) / 13 for i in range(12)}
"""The probability that a tool is good, for every query."""


def settled(i: int, random: Random, described: Described, grades: dict) -> SettledQuery:
    """A settled query as read from `settled`; there is one each second."""
    return settled_query(i, random)._replace(
        candidate_ids=list(described.candidate_ids),
        feature_names=None,
        features=np.zeros((0, 0)),
        grades=grades,
        described=described,
    )


def tools(i: int, random: Random) -> SettledQuery:
    names = random.sample(sorted(QUALITY), 5)
    grades = {name: float(random.random() < QUALITY[name]) for name in names}
    texts = [f"does {name}" for name in names] if i % 2 else []
    return settled(i, random, Described("tool", f"query {i % 7}", names, texts), grades)


def graphs(i: int, random: Random) -> SettledQuery:
    """Types c and d are good; ids carry no information, because each occurs once."""
    made = [Graph(random.choice("abcd"), f"text {i % 5}", random.randrange(9), k) for k in range(5)]
    ids = [f"g-{i}-{k}" for k in range(5)]
    grades = {name: float(graph.type in "cd") for name, graph in zip(ids, made, strict=True)}
    return settled(i, random, Described("graph", "a query", ids, graphs=made), grades)


def oracle(i: int, random: Random) -> SettledQuery:
    """Tools that occur once and differ only in their judgments."""
    names = [f"{i}-{k}" for k in range(5)]
    random.shuffle(names)
    grades = {name: float(k == 0) for k, name in enumerate(names)}
    return settled(i, random, Described("tool", "", names), grades)


def described_world(
    made: Callable[[int, Random], SettledQuery], seed: int = 1, n_queries: int = 700
) -> list[SettledQuery]:
    random = Random(seed)
    return numbered([made(i, random) for i in range(n_queries)])

"""phi_coop and phi_struct: what names and shapes say."""

from collections.abc import Sequence
from decimal import Context, Decimal
from functools import lru_cache
from typing import Final

import numpy as np

from evaluator.core.types.candidates import Graph
from evaluator.core.types.records import FloatArray

_PRECISE: Final = Context(prec=40)
_FEW_WORDS: Final = 5


def coop_of_tools(query: str, names: Sequence[str]) -> list[float]:
    """1.0 for a tool whose name is in the query, 0.7 if a part of it is, else 0.3; case folded.

    >>> coop_of_tools("Call WEATHER for a flight", ["weather", "search_flight", "mail_", "_"])
    [1.0, 0.7, 0.3, 0.3]
    """
    text = query.casefold()
    return [_coop_of_tool(text, name.casefold()) for name in names]


def _coop_of_tool(query: str, name: str) -> float:
    if name in query:
        return 1.0
    return 0.7 if any(part in query for part in name.split("_") if part) else 0.3


def coop_of_graphs(query: str, graphs: Sequence[Graph]) -> list[float]:
    """Small graphs for few words, large ones for many: 0.8 x size + 0.2."""
    few = len(query.split()) < _FEW_WORDS
    return [0.8 * _size(graph.n_nodes, few=few) + 0.2 for graph in graphs]


def _size(n_nodes: int, *, few: bool) -> float:
    return 1 / (1 + _ln_1p(n_nodes)) if few else min(1.0, _ln_1p(n_nodes) / 5)


@lru_cache(maxsize=2_048)
def _ln_1p(n: int) -> float:
    """The double nearest to ln(1 + n), on every machine."""
    return float(_PRECISE.ln(Decimal(1 + n)))


def struct_of_tools(relevances: FloatArray) -> FloatArray:
    """min(1, sqrt(phi_rel + 0.1)), elementwise."""
    return np.minimum(1.0, np.sqrt(relevances + 0.1))


def struct_of_graphs(graphs: Sequence[Graph]) -> list[float]:
    """0.6 x density + 0.4 x uniqueness of each graph among the others.

    Density is min(1, edges/nodes), 0 without nodes; uniqueness is how far the number of nodes
    lies from the mean of the others, relative to twice that mean (at least 1), at most 1.

    >>> struct_of_graphs([Graph(n_nodes=4, n_edges=2)])  # 0.6 x 0.5 + 0.4 x 0.5
    [0.5]
    """
    total = sum(graph.n_nodes for graph in graphs)
    n_others = len(graphs) - 1
    return [
        0.6 * _density(graph) + 0.4 * _uniqueness(graph.n_nodes, total - graph.n_nodes, n_others)
        for graph in graphs
    ]


def _density(graph: Graph) -> float:
    return min(1.0, graph.n_edges / graph.n_nodes) if graph.n_nodes else 0.0


def _uniqueness(n_nodes: int, total_of_others: int, n_others: int) -> float:
    if n_others == 0:
        return 0.5
    mean = total_of_others / n_others
    return min(1.0, abs(n_nodes - mean) / max(mean, 1.0) / 2)

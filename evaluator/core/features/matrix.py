"""The features of a query's candidates: phi_rel, phi_hist, phi_coop and phi_struct."""

from collections.abc import Sequence
from decimal import Context, Decimal
from functools import lru_cache
from typing import Final

import numpy as np

from evaluator.core.features.embedding import Embedder, cosines
from evaluator.core.features.history import SuccessTable
from evaluator.core.measures.lists import column_sum
from evaluator.core.types.candidates import Described, Graph
from evaluator.core.types.records import FloatArray

FEATURE_NAMES: Final = ("phi_rel", "phi_hist", "phi_coop", "phi_struct")

_PRECISE: Final = Context(prec=40)
_FEW_WORDS: Final = 5


def features_of(described: Described, *, embedder: Embedder, history: SuccessTable) -> FloatArray:
    """`[n_candidates, 4]` in [0, 1]: the columns of FEATURE_NAMES, in message order.

    *history* must not have learned from judgments of this query.

    Raises:
        ValueError: if the embedder returns another shape, or a number that is not finite.
    """
    relevances = _relevances(described, embedder)
    if described.kind == "graph":
        coop = coop_of_graphs(described.query, described.graphs)
        struct = np.array(struct_of_graphs(described.graphs))
    else:
        coop = coop_of_tools(described.query, described.candidate_ids)
        struct = np.minimum(1.0, np.sqrt(relevances + 0.1))
    hist = history.success_rates(described.kind, described.types())
    return np.column_stack([relevances, np.array(hist), np.array(coop), struct])


def _relevances(described: Described, embedder: Embedder) -> FloatArray:
    """phi_rel: (1 + cosine of query and candidate)/2, so 0.5 if either vector is 0."""
    texts = [described.query, *described.texts()]
    vectors = embedder.embed(texts)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise ValueError(
            f"the embedder {embedder.name} must give one row of finite numbers for each of "
            f"{len(texts)} texts; it gave an array of shape {vectors.shape}. Use another one"
        )
    return (1 + cosines(vectors[0], vectors[1:])) / 2


def coop_of_tools(query: str, names: Sequence[str]) -> list[float]:
    """1.0 for a tool whose name is in the query, 0.7 if a part of it is, else 0.3; case folded.

    >>> coop_of_tools("Call WEATHER for a flight", ["weather", "search_flight", "mail_", "_"])
    [1.0, 0.7, 0.3, 0.3]
    """
    text, folded = query.casefold(), [name.casefold() for name in names]
    partly = [any(part in text for part in name.split("_") if part) for name in folded]
    return [
        1.0 if n in text else 0.7 if some else 0.3 for n, some in zip(folded, partly, strict=True)
    ]


def coop_of_graphs(query: str, graphs: Sequence[Graph]) -> list[float]:
    """0.8 x size + 0.2: small graphs for few words, large ones for many."""
    few = len(query.split()) < _FEW_WORDS
    sizes = [_ln_1p(graph.n_nodes) for graph in graphs]
    return [0.8 * (1 / (1 + size) if few else min(1.0, size / 5)) + 0.2 for size in sizes]


@lru_cache(maxsize=2_048)
def _ln_1p(n: int) -> float:
    """The double nearest to ln(1 + n), on every machine."""
    return float(_PRECISE.ln(Decimal(1 + n)))


def struct_of_graphs(graphs: Sequence[Graph]) -> list[float]:
    """0.6 x density + 0.4 x uniqueness of each graph among the others.

    Density is min(1, edges/nodes), 0 without nodes; uniqueness is the distance of the number of
    nodes from the mean of the others, relative to twice that mean (at least 1), at most 1.

    >>> struct_of_graphs([Graph(n_nodes=4, n_edges=2)])  # 0.6 x 0.5 + 0.4 x 0.5
    [0.5]
    """
    total, n_others = sum(graph.n_nodes for graph in graphs), len(graphs) - 1
    found = []
    for graph in graphs:
        density = min(1.0, graph.n_edges / graph.n_nodes) if graph.n_nodes else 0.0
        uniqueness = 0.5
        if n_others:
            mean = (total - graph.n_nodes) / n_others
            uniqueness = min(1.0, abs(graph.n_nodes - mean) / max(mean, 1.0) / 2)
        found.append(0.6 * density + 0.4 * uniqueness)
    return found


def filled(features: FloatArray) -> FloatArray:
    """The features of a query with the mean of the other candidates in place of NaN.

    So a missing feature makes a candidate neither better nor worse.

    Args:
        features: `[n_candidates, n_features]`, NaN where missing.
    Returns:
        A copy; 0 where no candidate has the feature. Sums run candidate by candidate.

    >>> filled(np.array([[1.0, np.nan], [np.nan, np.nan], [4.0, np.nan]]))
    array([[1. , 0. ],
           [2.5, 0. ],
           [4. , 0. ]])
    """
    missing = np.isnan(features)
    counts = np.maximum(np.count_nonzero(~missing, axis=0), 1)
    shares = np.where(missing, 0.0, features) / counts  # so that no sum overflows
    means = column_sum(shares.T)
    return np.where(missing, means, features)

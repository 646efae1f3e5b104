"""The features of a query's candidates as a matrix."""

from typing import Final

import numpy as np

from evaluator.core.features.embedding import Embedder, cosines
from evaluator.core.features.history import History
from evaluator.core.features.shapes import (
    coop_of_graphs,
    coop_of_tools,
    struct_of_graphs,
    struct_of_tools,
)
from evaluator.core.types.candidates import Described
from evaluator.core.types.records import FloatArray

FEATURE_NAMES: Final = ("phi_rel", "phi_hist", "phi_coop", "phi_struct")


def features_of(described: Described, *, embedder: Embedder, history: History) -> FloatArray:
    """`[n_candidates, 4]` in [0, 1]: the columns of FEATURE_NAMES, in message order.

    *history* must have learned from nothing that the query itself was judged by.

    Raises:
        ValueError: if the embedder gives another shape than promised, or a number that is not
            finite.
    """
    relevances = relevances_of(described, embedder)
    coop: list[float]
    if described.kind == "graph":
        coop = coop_of_graphs(described.query, described.graphs)
        struct = np.array(struct_of_graphs(described.graphs))
    else:
        coop = coop_of_tools(described.query, described.candidate_ids)
        struct = struct_of_tools(relevances)
    hist = history.success_rates(described.kind, described.types())
    return np.column_stack([relevances, np.array(hist), np.array(coop), struct])


def relevances_of(described: Described, embedder: Embedder) -> FloatArray:
    """phi_rel: (1 + cosine of query and candidate)/2, so 0.5 where either says nothing."""
    texts = [described.query, *described.texts()]
    vectors = embedder.embed(texts)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise ValueError(
            f"the embedder {embedder.name} must give one row of finite numbers for each of "
            f"{len(texts)} texts; it gave an array of shape {vectors.shape}. Use another one"
        )
    return (1 + cosines(vectors[0], vectors[1:])) / 2

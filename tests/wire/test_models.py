"""The strict models of members that only some messages have."""

from math import log

import pytest
from msgspec.structs import replace

from evaluator.core.features import Described, Graph, HashedNgrams, SuccessTable, features_of
from evaluator.wire.messages.models import Ranking

BASE = {"schema_version": 1, "trace_id": "t", "node_id": "n"}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"candidate_ids": ["a", "b"], "scores": [2, 1]}, None),
        ({"candidate_ids": ["a", "b"], "scores": [2, 1], "published_ms": [None, None]}, None),
        ({"candidate_ids": ["a", "b"], "scores": [2, 1], "published_ms": [7, None]}, [7, None]),
        ({"candidates": [{"id": "a", "score": 1}]}, None),
        ({"candidates": [{"id": "a", "score": 1, "published_ms": 7}]}, [7]),
        (
            {"candidates": [{"id": "a", "score": 1, "published_ms": 7}], "published_ms": [8]},
            [8],
        ),
        ({"candidate_ids": [], "scores": []}, None),
    ],
)
def test_times_of_publication_come_from_the_columns_or_from_the_rows(members, expected):
    assert Ranking.model_validate({**BASE, **members}).all_published_ms() == expected


TWO = {**BASE, "query": "q", "candidate_ids": ["a", "b"], "scores": [2, 1]}
GRAPHS = [{"type": "plan", "text": "x", "nodes": [{}, "n", None], "edges": [[0, 1], 7]}, {}]
AS_TOOLS = Described("tool", "q", ("a", "b"))
AS_GRAPHS = Described("graph", "q", ("a", "b"), (), (Graph("plan", "x", 3, 2), Graph()))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, None),
        ({"candidate_kind": "graph"}, None),
        ({"candidate_kind": "tool"}, AS_TOOLS),
        ({"descriptions": ["x", None]}, replace(AS_TOOLS, descriptions=("x", ""))),
        ({"candidate_kind": "tool", "descriptions": ["x", "y"]},
         replace(AS_TOOLS, descriptions=("x", "y"))),
        ({"candidate_kind": "tool", "query": None}, replace(AS_TOOLS, query="")),
        ({"graphs": GRAPHS}, AS_GRAPHS),
        ({"candidate_kind": "graph", "graphs": GRAPHS}, AS_GRAPHS),
        ({"graphs": [{"type": None, "text": None, "nodes": None, "edges": None}, {"more": 1}]},
         replace(AS_GRAPHS, graphs=(Graph(), Graph()))),
        ({"graphs": GRAPHS, "features": [[1], [2]]}, None),
        ({"candidate_ids": [], "scores": [], "graphs": []}, Described("graph", "q", ())),
        ({"candidate_ids": None, "scores": None, "descriptions": ["x", "y"],
          "candidates": [{"id": "a", "score": 1}, {"id": "b", "score": 2}]},
         replace(AS_TOOLS, descriptions=("x", "y"))),
    ],
)  # fmt: skip
def test_described_candidates_are_read_from_a_ranking(members, expected):
    assert Ranking.model_validate({**TWO, **members}).described() == expected


@pytest.mark.parametrize(
    "members",
    [
        {"descriptions": ["ä" * 4096, "x" * 8192]},
        {"graphs": [{"type": "ä" * 128, "text": "x" * 8192}, {"nodes": [0] * 1000}]},
        {"graphs": [{"edges": [0] * 10_000}, {"nodes": ["x" * 10_000]}]},
    ],
)
def test_limits_of_descriptions_include_their_number(members):
    assert Ranking.model_validate({**TWO, **members}).described() is not None


def test_a_described_ranking_has_features():
    ranking = Ranking.model_validate({**TWO, "graphs": GRAPHS})
    features = features_of(ranking.described(), embedder=HashedNgrams(), history=SuccessTable())
    # n = 3 and 0 nodes, 2 edges, one word
    assert features[:, 1].tolist() == [0.5, 0.5]
    assert features[:, 2].tolist() == pytest.approx([0.8 / (1 + log(4)) + 0.2, 1.0])
    assert features[:, 3].tolist() == pytest.approx([0.6 * 2 / 3 + 0.4 * 1, 0.4 * 3 / 3 / 2])

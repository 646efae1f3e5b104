"""What the strict models say of the members that only some messages have."""

import pytest

from evaluator.wire.models import Ranking

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

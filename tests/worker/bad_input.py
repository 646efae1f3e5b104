"""Malformed records by defect, and unusual records that are accepted."""

import json
from typing import Any

from evaluator.core.types.records import Log

AT_MS = 1_000_000_000_000
DEEP = 70


def ranking(**members: Any) -> bytes:
    """A ranking of two candidates; arguments replace its members, and `...` removes one."""
    return _text(
        {
            "schema_version": 1,
            "trace_id": "t-bad",
            "node_id": "n-bad",
            "timestamp_ms": AT_MS,
            "candidate_ids": ["a", "b"],
            "scores": [2, 1],
        },
        members,
    )


def judgment(**members: Any) -> bytes:
    return _text(
        {
            "schema_version": 1,
            "trace_id": "t-bad",
            "node_id": "n-bad",
            "timestamp_ms": AT_MS,
            "grades": {"a": 1},
        },
        members,
    )


def _text(plain: dict[str, Any], members: dict[str, Any]) -> bytes:
    both = {name: value for name, value in (plain | members).items() if value is not ...}
    return json.dumps(both).encode()


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1


MALFORMED: list[tuple[str, Log, bytes, set[str]]] = [
    ("not JSON", "rankings", b"hello", {"decode"}),
    ("half JSON", "judgments", b'{"schema_version": 1', {"decode"}),
    ("an array", "rankings", b"[]", {"schema"}),
    ("a number", "judgments", b"7", {"schema"}),
    ("null as JSON", "judgments", b"null", {"schema"}),
    ("a string for a number", "rankings", ranking(scores=["2", "1"]), {"schema"}),
    ("a boolean for a number", "judgments", judgment(grades={"a": True}), {"schema"}),
    ("a number for a string", "rankings", ranking(trace_id=7), {"schema"}),
    ("NaN", "rankings", ranking(scores=[float("nan"), 1]), {"non_finite"}),
    ("Infinity", "judgments", judgment(grades={"a": float("inf")}), {"non_finite"}),
    ("1e999", "rankings", ranking().replace(b"[2, 1]", b"[1e999, 1]"), {"non_finite"}),
    ("fewer scores than ids", "rankings", ranking(scores=[2]), {"schema"}),
    ("ragged features", "rankings", ranking(features=[[1, 2], [3]]), {"schema"}),
    (
        "1,001 candidates",
        "rankings",
        ranking(candidate_ids=[f"c{n}" for n in range(1_001)], scores=[1] * 1_001),
        {"limit"},
    ),
    ("300 KiB", "rankings", ranking(query="q" * 300 * 1024), {"oversize"}),
    ("300 KiB of noise", "judgments", b"\xff" * 300 * 1024, {"oversize"}),
    ("deep nesting", "rankings", ranking(extra=nested(DEEP)), {"limit", "decode"}),
    ("nesting without end", "judgments", b"[" * 100_000, {"limit", "decode"}),
    ("invalid UTF-8", "rankings", ranking().replace(b"t-bad", b"t-\xff"), {"decode"}),
    ("invalid UTF-8 where nobody looks", "rankings", ranking(extra="x").replace(b'"x"', b'"\xc3"'),
     {"decode"}),
    ("a lone surrogate", "judgments", judgment(node_id="\ud800"), {"decode"}),
    ("an unknown version", "rankings", ranking(schema_version=2), {"version"}),
    ("no version", "judgments", judgment(schema_version=...), {"schema"}),
    ("a negative timestamp", "rankings", ranking(timestamp_ms=-1), {"limit", "schema"}),
    ("a timestamp beyond all", "judgments", judgment(timestamp_ms=2**63), {"limit", "schema"}),
    ("the future", "rankings", ranking(timestamp_ms=AT_MS + 300_002), {"future"}),
    ("the future, judged", "judgments", judgment(timestamp_ms=AT_MS * 1_000), {"future"}),
    ("empty grades", "judgments", judgment(grades={}), {"schema", "limit"}),
    ("a grade of 1e9", "judgments", judgment(grades={"a": 1e9}), {"limit"}),
    ("an empty value", "rankings", b"", {"decode"}),
    ("an empty value, judged", "judgments", b"", {"decode"}),
    ("a byte order mark", "rankings", b"\xef\xbb\xbf" + ranking(), {"decode"}),
    ("Confluent framing", "rankings", b"\x00\x00\x00\x00\x2a" + ranking(), {"decode"}),
    ("Confluent framing, judged", "judgments", b"\x00\x00\x00\x01\x00" + judgment(), {"decode"}),
]  # fmt: skip
"""Rows: (defect, log, value, possible reasons)."""

ACCEPTED: list[tuple[str, Log, bytes | None, bytes | None]] = [
    ("unknown members", "rankings", b"k", ranking(node_id="1", extra={"a": [1]}, other=None)),
    ("no key", "rankings", None, ranking(node_id="2")),
    ("no candidates", "rankings", b"k", ranking(node_id="3", candidate_ids=[], scores=[])),
    ("a candidate twice", "rankings", b"k", ranking(node_id="4", candidate_ids=["a", "a"])),
    ("a grade of -1", "judgments", b"k", judgment(node_id="1", grades={"a": -1, "b": 1})),
    ("no key, judged", "judgments", None, judgment(node_id="2")),
    ("judged, nothing ranked", "judgments", b"k", judgment(node_id="3")),
    ("judged twice ranked", "judgments", b"k", judgment(node_id="4")),
    ("a heartbeat", "rankings", None, None),
    ("a heartbeat with a key", "judgments", b"k", None),
]
"""Rows: (peculiarity, log, key, value)."""

"""The members of messages that a mapping gives, and their kinds."""

import sys
from collections.abc import Mapping
from typing import Any, Final

TEXT, NUMBER, INTEGER, TIME, BOOLEAN = "text", "a number", "an integer", "a time", "a boolean"
UNITS: Final = ("ms", "us", "ns", "s", "iso")

Kinds = Mapping[str, str]
QUERY: Final = {"trace_id": TEXT, "node_id": TEXT, "timestamp_ms": TIME}
RANKING: Final[Kinds] = {
    **QUERY,
    **dict.fromkeys(("model", "variant", "query"), TEXT),
    "exposed_top": INTEGER,
}
RANKING_ROW: Final[Kinds] = {
    "candidate_id": TEXT,
    "rank": INTEGER,
    "score": NUMBER,
    "propensity": NUMBER,
    "published_ms": TIME,
    "exposed": BOOLEAN,
}
MESSAGE_OF_ROW: Final[Kinds] = {**QUERY, "source": TEXT, "judgment_id": TEXT}
JUDGMENT: Final[Kinds] = {**MESSAGE_OF_ROW, "candidate_id": TEXT, "grade": NUMBER}
RANKING_GROUPS: Final[Kinds] = {"segments": TEXT}
ROW_GROUPS: Final[Kinds] = {"features": NUMBER, "scorers": NUMBER}
REQUIRED: Final = frozenset({"trace_id", "node_id", "timestamp_ms", "candidate_id", "grade"})


def fits(value: Any, kind: str) -> bool:
    """Whether a value of a mapping file is of a kind."""
    if kind == BOOLEAN or isinstance(value, bool):
        return kind == BOOLEAN and isinstance(value, bool)
    if kind == NUMBER:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, str if kind == TEXT else int)

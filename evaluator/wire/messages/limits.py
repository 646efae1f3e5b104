"""Limits of rankings and judgments."""

from typing import Final

SCHEMA_VERSION: Final = 1
MAX_CANDIDATES: Final = 1_000
MAX_FEATURES: Final = 256
MAX_ID_BYTES: Final = 256
MAX_NAME_BYTES: Final = 256
MAX_SCORERS: Final = 8
MAX_DESCRIPTION_BYTES: Final = 8_192
MAX_NODES: Final = 1_000
MAX_EDGES: Final = 10_000
MAX_RANK: Final = 2**63 - 1
RESERVED_RANKERS: Final = frozenset({"served", "champion", "challenger", "weights"})


def is_scorer_name(name: str) -> bool:
    """Whether the name is valid for a scorer."""
    return name != "" and name not in RESERVED_RANKERS

"""What of the totals an answer over HTTP has room for."""

import json
from typing import Final

from evaluator.core.types.records import Tally

MAX_ROWS_BYTES: Final = 8 << 20
ROW_BYTES: Final = 256
"""Bytes of a row in JSON, without the names of model, variant and ranker."""
_KINDS: Final = {"running", "settled"}


def with_room(
    tally: Tally, *, rows_per_ranker: int, most: int = MAX_ROWS_BYTES
) -> tuple[Tally, int]:
    """The tally of the (model, variant) pairs with the most queries, as far as there is room.

    Args:
        tally: sums over tasks.
        rows_per_ranker: rows of one kind that each ranker of a pair has.
        most: bytes of all rows together.
    Returns:
        *tally*, or what is left of it, and the number of pairs that are left out.
    """
    queries: dict[tuple[str, ...], int] = {}
    blocks: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for path, n in tally.items():
        if path[0] in _KINDS:
            blocks.setdefault(path[1:3], set()).add((path[0], path[3]))
            if path[-1] == "queries":
                queries[path[1:3]] = max(n, queries.get(path[1:3], 0))
    kept = set()
    for pair in sorted(blocks, key=lambda pair: (-queries.get(pair, 0), pair)):
        names = len(blocks[pair]) * len(json.dumps(pair))
        rankers = sum(len(json.dumps(ranker)) for _, ranker in blocks[pair])
        most -= rows_per_ranker * (len(blocks[pair]) * ROW_BYTES + names + rankers)
        if most < 0:
            break
        kept.add(pair)
    if len(kept) == len(blocks):
        return tally, 0
    left = {path: n for path, n in tally.items() if path[0] not in _KINDS or path[1:3] in kept}
    return left, len(blocks) - len(kept)

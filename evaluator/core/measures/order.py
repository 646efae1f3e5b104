"""The order of candidates by score, best first, as one integer sort of many lists.

The rules of ties (candidate id descending) and of repeated candidates (the best ranked counts) are
here.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.types.records import FloatArray, IntArray

_SIGNLESS: Final = np.int64((1 << 63) - 1)
"""Every bit but the sign; also the key of cells outside a list, which sort last."""


def packed_order(
    scores: FloatArray, inside: NDArray[np.bool_] | None = None
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Positions by score descending, and which lists may have ties that this order ignores.

    A key is the score's bits in descending order with the position in the lowest bits, so scores
    that differ in those bits alone seem tied; `exact_order` resolves them.

    Args:
        scores: `[n_lists, width]`, finite where *inside* (or everywhere without it).
        inside: `[n_lists, width]`, the cells of the list; the others come last.
    Returns:
        positions `[n_lists, width]`, column after column in memory, and `[n_lists]`.

    >>> packed_order(np.array([[0.5, 2.0, 1.0], [3.0, 3.0, 4.0]]))
    (array([[1, 2, 0],
           [2, 0, 1]]), array([False,  True]))
    """
    width = scores.shape[1]
    position_bits = max(width - 1, 1).bit_length()
    low = np.int64((1 << position_bits) - 1)
    keys = np.subtract(0.0, scores, order="C").view(np.int64)  # -0.0 and 0.0 become one
    signs = keys >> 63
    signs &= _SIGNLESS
    keys ^= signs
    if inside is not None:
        keys[~inside] = _SIGNLESS
    keys &= ~low
    keys |= np.arange(width)
    keys.sort(axis=1)
    ordered = keys.T.copy()  # column after column in memory
    high = ordered >> position_bits
    same = high[1:] == high[:-1]
    if inside is not None:
        same &= high[1:] != _SIGNLESS >> position_bits
    ordered &= low
    return ordered.T, same.any(axis=0)


def exact_order(candidate_ids: Sequence[str], keys: Sequence[float]) -> list[int]:
    """Positions by key descending, ties by candidate id bytes descending; the first of each id.

    >>> exact_order(["a", "b", "a"], [1.0, 1.0, 2.0])
    [2, 1]
    """
    order = sorted(
        range(len(candidate_ids)), key=lambda i: (keys[i], candidate_ids[i]), reverse=True
    )  # str sorts by code point, which is the order of UTF-8 bytes
    first_use: dict[str, int] = {}
    for position in order:
        first_use.setdefault(candidate_ids[position], position)
    return list(first_use.values())

"""Texts as vectors: the port of whatever makes them, and their cosine."""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from evaluator.core.types.records import FloatArray

MAX_REMEMBERED_TEXTS: Final = 4_096


class Embedder(Protocol):
    """Texts -> vectors. The vector of a text depends on that text alone, never on others."""

    @property
    def name(self) -> str:
        """Tells apart what is not comparable; it belongs to the hash of the features."""

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """`[n_texts, n_dimensions]`, finite, of any length; zeros for a text that says nothing."""


class Remembered:
    """Another embedder, asked once for each of the texts that were last needed.

    At most *max_texts* vectors are kept; what makes room is the text not asked for the longest.
    As a vector depends on its text alone, remembering changes no feature.
    """

    def __init__(self, embedder: Embedder, *, max_texts: int = MAX_REMEMBERED_TEXTS) -> None:
        if max_texts < 1:
            raise ValueError(f"max_texts is {max_texts}; at least one text must be kept")
        self._embedder = embedder
        self._max_texts = max_texts
        self._vectors: dict[str, FloatArray] = {}

    @property
    def name(self) -> str:
        return self._embedder.name

    def __len__(self) -> int:
        return len(self._vectors)

    def embed(self, texts: Sequence[str]) -> FloatArray:
        new = list(dict.fromkeys(text for text in texts if text not in self._vectors))
        vectors = self._vectors | dict(zip(new, self._embedder.embed(new), strict=True))
        for text in dict.fromkeys(texts):
            self._vectors.pop(text, None)
            self._vectors[text] = vectors[text]
        for text in list(self._vectors)[: -self._max_texts]:
            del self._vectors[text]
        return np.array([vectors[text] for text in texts])


def cosines(one: FloatArray, others: FloatArray) -> FloatArray:
    """Cosine of *one* with each row of *others*; 0 where either has no direction.

    Args:
        one: `[n_dimensions]`.
        others: `[n_others, n_dimensions]`.
    Returns:
        `[n_others]`, in [-1, 1]. Of whole numbers it is the same everywhere, to the last bit:
        their sums are exact in any order.
    """
    squares = (others * others).sum(axis=1) * (one * one).sum()
    dots = (others * one).sum(axis=1)
    quotients: FloatArray = np.zeros(len(others))
    np.divide(dots, np.sqrt(squares), out=quotients, where=squares > 0)
    return quotients.clip(-1.0, 1.0)

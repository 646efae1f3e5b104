"""Embedders: texts as vectors, and their cosine.

The built-in embedder hashes character n-grams, so it downloads nothing. Texts that share parts of
words are close; it has no meaning of words: "flight" is no closer to "plane" than to "piano".
"""

import re
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from evaluator.core.types.records import FloatArray

MAX_REMEMBERED_TEXTS: Final = 4_096

_WORDS: Final = re.compile(r"[^\W_]+")
_BLANK: Final = ord(" ")
_SIZES: Final = (3, 4, 5)
_BITS: Final = 9
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no character is lost
_FOLD: Final = np.uint64(32)
_SIGN: Final = np.uint64(1)
_BUCKET: Final = np.uint64(64 - _BITS)


class Embedder(Protocol):
    """Texts -> vectors. The vector of a text depends on that text alone."""

    @property
    def name(self) -> str:
        """Identifies comparable vectors; it is part of the fingerprint."""

    def embed(self, texts: Sequence[str]) -> FloatArray:
        """`[n_texts, n_dimensions]`, finite, of any length; zeros for a text without content."""


class Remembered:
    """Caches the vectors of an embedder for the last MAX_REMEMBERED_TEXTS texts."""

    def __init__(self, embedder: Embedder) -> None:
        self.name = embedder.name
        self._embedder = embedder
        self._vectors: dict[str, FloatArray] = {}

    def embed(self, texts: Sequence[str]) -> FloatArray:
        new = list(dict.fromkeys(text for text in texts if text not in self._vectors))
        vectors = self._vectors | dict(zip(new, self._embedder.embed(new), strict=True))
        for text in dict.fromkeys(texts):
            self._vectors.pop(text, None)
            self._vectors[text] = vectors[text]
        for text in list(self._vectors)[:-MAX_REMEMBERED_TEXTS]:
            del self._vectors[text]
        return np.array([vectors[text] for text in texts])


def cosines(one: FloatArray, others: FloatArray) -> FloatArray:
    """Cosine of *one* with each row of *others*; 0 if one of the two vectors is 0.

    Args:
        one: `[n_dimensions]`.
        others: `[n_others, n_dimensions]`.
    Returns:
        `[n_others]`, in [-1, 1]. For vectors of whole numbers it has the same bits on every
        machine, because their sums are exact.
    """
    squares = (others * others).sum(axis=1) * (one * one).sum()
    dots = (others * one).sum(axis=1)
    quotients: FloatArray = np.zeros(len(others))
    np.divide(dots, np.sqrt(squares), out=quotients, where=squares > 0)
    return quotients.clip(-1.0, 1.0)


class HashedNgrams:
    """Feature hashing of the distinct n-grams of a text into 512 signed counts.

    An n-gram is 3, 4 or 5 characters of one word with a blank on both sides, case folded; words
    are runs of letters and digits. Every entry is a whole number, so sums of them are the same on
    every machine. N-grams of one entry can cancel: a few texts of two letters have the vector of an
    empty text.

    >>> HashedNgrams().embed(["Book a flight!", "book A flight", "-"]).any(axis=1)
    array([ True,  True, False])
    """

    name = "ngrams-1"
    n_dimensions = 1 << _BITS

    def embed(self, texts: Sequence[str]) -> FloatArray:
        vectors = np.zeros((len(texts), self.n_dimensions))
        for row, text in enumerate(texts):
            hashes = _ngrams(text)
            places = (hashes >> _BUCKET).astype(np.int64)
            signs = (hashes & _SIGN).astype(np.float64) * 2 - 1
            vectors[row] = np.bincount(places, weights=signs, minlength=self.n_dimensions)
        return vectors


def _ngrams(text: str) -> NDArray[np.uint64]:
    """A hash of each different n-gram, sorted."""
    words = _WORDS.findall(text.casefold())
    spaced = f" {' '.join(words)} "
    points = np.frombuffer(spaced.encode("utf-32-le", "surrogatepass"), "<u4")
    points = points.astype(np.uint64)
    hashes = [_hashes(points, size) for size in _SIZES if words and len(points) >= size]
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))


def _hashes(points: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Hashes of all n-grams of *size* characters within a word; a blank only begins or ends one."""
    n = len(points) - size + 1
    hashes = np.full(n, size, np.uint64)
    within = np.ones(n, np.bool_)
    for place in range(size):
        characters = points[place : place + n]
        hashes = (hashes ^ characters) * _MULTIPLIER
        hashes ^= hashes >> _FOLD
        if 0 < place < size - 1:
            within &= characters != _BLANK
    return hashes[within]

"""Hashed character n-grams: an embedder that has nothing to download.

Texts that share pieces of words lie close. It knows no meaning: "flight" is no nearer to "plane"
than to "piano".
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evaluator.core.types.records import FloatArray

_WORDS: Final = re.compile(r"[^\W_]+")
_BLANK: Final = ord(" ")
_SIZES: Final = (3, 4, 5)
_BITS: Final = 9
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no character is lost
_FOLD: Final = np.uint64(32)
_SIGN: Final = np.uint64(1)
_BUCKET: Final = np.uint64(64 - _BITS)


class HashedNgrams:
    """The different n-grams of a text, counted with a sign in 512 places.

    An n-gram is 3, 4 or 5 characters of one word with a blank on both sides, case folded; words
    are runs of letters and digits. Every entry is a whole number, so whatever is summed of them is
    the same on every machine.

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
    """A hash of each different n-gram, in no meaningful order."""
    words = _WORDS.findall(text.casefold())
    spaced = f" {' '.join(words)} "
    points = np.frombuffer(spaced.encode("utf-32-le", "surrogatepass"), "<u4")
    points = points.astype(np.uint64)
    hashes = [_hashes(points, size) for size in _SIZES if words and len(points) >= size]
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))


def _hashes(points: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Of every run of so many characters within one word; a blank only begins or ends it."""
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

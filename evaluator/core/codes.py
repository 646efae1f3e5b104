"""Candidate ids as small integers, found by the thousand.

Ids come as UTF-8 in one buffer, as columnar formats keep strings. A batch is coded without
making a string of each id: their bytes are hashed eight at a time, looked up in a sorted array,
and compared with the known id byte for byte, so that equal hashes confuse nothing.
"""

from collections.abc import Hashable, Iterable
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluator.core.strings import WORD_BYTES, PackedStrings, Words
from evaluator.core.types import IntArray

_MOST_WORDS = 8
_PATIENCE = 16
_FACTORS = np.array(
    [
        0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93,
        0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3,
        0xFF51AFD7ED558CCD,
    ],
    np.uint64,
)  # fmt: skip  # odd, so that multiplying loses nothing


def _hashes(words: Words) -> Words:
    """Of texts as words; words of padding change nothing."""
    hashes: Words = words[0] * _FACTORS[0]
    for word, factor in zip(words[1:], _FACTORS[1:], strict=False):
        hashes += word * factor
    hashes ^= hashes >> np.uint64(32)
    return hashes


class Numbering(dict[Hashable, int]):
    """Small integers for values, given out in order of first mention.

    >>> numbers = Numbering()
    >>> numbers.of(["b", "a", "b"], 3).tolist(), numbers.values_by_number
    ([0, 1, 0], ['b', 'a'])
    """

    def __init__(self) -> None:
        super().__init__()
        self.values_by_number: list[Any] = []

    def __missing__(self, value: Hashable) -> int:
        number = self[value] = len(self.values_by_number)
        self.values_by_number.append(value)
        return number

    def of(self, values: Iterable[Hashable], n: int) -> NDArray[np.int32]:
        """Numbers of *n* values: `[n]`."""
        return np.fromiter(map(self.__getitem__, values), np.int32, n)


class CandidateCodes:
    """Codes of candidate ids, given out in order of first mention."""

    _MOST_BYTES = WORD_BYTES * _MOST_WORDS

    def __init__(self) -> None:
        self._numbering = Numbering()
        self.ids: list[str] = self._numbering.values_by_number
        self._n_indexed = 0
        self._hashes = np.empty(0, np.uint64)  # sorted
        self._codes = np.empty(0, np.int32)  # of the hashes
        self._words = np.empty((0, 0), np.uint64)  # of each indexed code
        self._patience = 0  # batches to code one by one, after one of mostly new ones

    def of(self, candidate_ids: Iterable[str], n: int) -> NDArray[np.int32]:
        """Codes of *n* ids: `[n]`."""
        return self._numbering.of(candidate_ids, n)

    def of_texts(self, texts: PackedStrings) -> NDArray[np.int32]:
        """Codes of many ids: `[n_texts]`."""
        if self._patience or int(texts.lengths.max(initial=0)) > self._MOST_BYTES:
            self._patience = max(0, self._patience - 1)
            return self.of(texts.strings(), len(texts))
        codes, unknown = self._look_up(texts)
        if len(unknown):
            n_before = len(self.ids)
            codes[unknown] = self.of(texts.picked(unknown).strings(), len(unknown))
            if 2 * (len(self.ids) - n_before) > len(texts):
                self._patience = _PATIENCE
        if len(self.ids) - self._n_indexed > self._n_indexed // 4:
            self._index()
        return codes

    def _look_up(self, texts: PackedStrings) -> tuple[NDArray[np.int32], IntArray]:
        """Codes where they are known and indexed, and which texts are not."""
        if not len(self._hashes):
            return np.empty(len(texts), np.int32), np.arange(len(texts))
        words = texts.words()
        places = np.searchsorted(self._hashes, _hashes(words))
        codes = self._codes.take(places, mode="clip")
        differs = np.zeros(len(texts), bool)
        for known, asked in zip_longest(self._words, words):
            if asked is None:
                differs |= known[codes] != 0
            elif known is None:
                differs |= asked != 0
            else:
                differs |= known[codes] != asked
        return codes, np.flatnonzero(differs)

    def _index(self) -> None:
        """Makes all ids that are short enough known to `_look_up`."""
        short = [i for i, name in enumerate(self.ids) if len(name.encode()) <= self._MOST_BYTES]
        self._n_indexed = len(self.ids)
        words = PackedStrings.of([self.ids[code] for code in short]).words()
        self._words = np.zeros((len(words), len(self.ids)), np.uint64)
        self._words[:, short] = words
        hashes = _hashes(words)
        order = np.argsort(hashes)
        self._hashes = hashes[order]
        self._codes = np.array(short, np.int32)[order]

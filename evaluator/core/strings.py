"""Strings by the thousand: UTF-8 in one buffer, as columnar formats keep them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORD_BYTES = 8
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(WORD_BYTES + 1)], np.uint64)

Words = NDArray[np.uint64]


@dataclass(slots=True)
class PackedStrings:
    """Strings as UTF-8: text i is `buffer[starts[i] : starts[i] + lengths[i]]`.

    The buffer ends in eight bytes that belong to no text.
    """

    buffer: bytes
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, strings: Sequence[str]) -> "PackedStrings":
        """The same strings.

        >>> PackedStrings.of(["a", "bc"]).strings()
        ['a', 'bc']
        """
        encoded = [string.encode() for string in strings]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return cls(b"".join(encoded) + bytes(WORD_BYTES), np.cumsum(lengths) - lengths, lengths)

    @classmethod
    def joined(cls, parts: Sequence["PackedStrings"]) -> "PackedStrings":
        """The texts of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        sizes = np.array([len(part.buffer) for part in parts], np.int64)
        offsets = np.cumsum(sizes) - sizes
        starts = [part.starts + at for part, at in zip(parts, offsets.tolist(), strict=True)]
        return cls(
            b"".join([part.buffer for part in parts]) or bytes(WORD_BYTES),
            np.concatenate(starts) if starts else np.empty(0, np.int64),
            np.concatenate([part.lengths for part in parts]) if parts else np.empty(0, np.int64),
        )

    def __len__(self) -> int:
        return len(self.starts)

    def strings(self, first: int = 0, end: int | None = None) -> list[str]:
        """PackedStrings *first* to before *end*."""
        starts, lengths = self.starts[first:end].tolist(), self.lengths[first:end].tolist()
        return [self.buffer[at : at + n].decode() for at, n in zip(starts, lengths, strict=True)]

    def picked(self, indices: NDArray[np.int64]) -> "PackedStrings":
        """Some of the texts, of the same buffer."""
        return PackedStrings(self.buffer, self.starts[indices], self.lengths[indices])

    def words(self) -> Words:
        """Lengths of the texts, then their bytes, eight to a word, padded with zeros.

        `[1 + n_words, n_texts]`. No text may be longer than 64 bytes.
        """
        n_words = -(-int(self.lengths.max(initial=1)) // WORD_BYTES)
        n_places = len(self.buffer) - WORD_BYTES + 1
        at_any_byte = np.ndarray((n_places,), "<u8", self.buffer, strides=(1,))
        words = np.empty((1 + n_words, len(self)), np.uint64)
        words[0] = self.lengths
        for word in range(n_words):
            first = word * WORD_BYTES
            left = np.clip(self.lengths - first, 0, WORD_BYTES)
            words[1 + word] = at_any_byte.take(self.starts + first, mode="clip") & _MASKS[left]
        return words

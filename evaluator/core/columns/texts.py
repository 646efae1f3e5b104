"""Rows of texts, as words of eight bytes, without an object per text."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evaluator.core.columns.table import IntArray, span_indices

WORD: Final = 8
SEPARATOR: Final = 0x1F
_SPACE, _QUOTE, _BACKSLASH = b' "\\'
_N_COLUMNS: Final = 3


class TextRows(Struct, frozen=True, eq=False):
    """Rows of as many texts each, in UTF-8, with SEPARATOR after each text.

    A row begins with a word, `starts` `[n_rows]`; `sizes` `[n_rows, n_columns]` are the bytes of
    its texts, each with that byte. `plain` is whether all of its texts are their own JSON text
    without the quotes.

    >>> rows = TextRows.of([("t", "ü", ""), ("u", "n", 'a "b"')])
    >>> rows.column(1), rows[1], rows.plain.tolist()
    (['ü', 'n'], ['u', 'n', 'a "b"'], [True, False])
    """

    words: NDArray[np.uint64]
    starts: IntArray
    sizes: IntArray
    plain: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Sequence[str]]) -> "TextRows":
        """The same texts."""
        texts = [[text.encode() for text in row] for row in rows]
        lengths = [len(text) + 1 for row in texts for text in row]
        sizes = np.array(lengths, np.int64).reshape(-1, _N_COLUMNS)
        words, after = n_words(sizes), bytes([SEPARATOR])
        padded = [
            after.join([*row, b""]).ljust(WORD * n, b"\0")
            for row, n in zip(texts, words.tolist(), strict=True)
        ]
        return cls._following(b"".join(padded), sizes)

    @classmethod
    def separated(cls, text: bytes) -> "TextRows":
        """Rows in whole words, with SEPARATOR after each text and in none."""
        found = np.frombuffer(text, np.uint8) == SEPARATOR
        ends = (np.flatnonzero(found) + 1).reshape(-1, _N_COLUMNS)
        firsts = np.append(0, -(-ends[:, -1:] // WORD) * WORD)[:-1]  # behind the row before
        return cls._following(text, np.diff(ends, axis=1, prepend=firsts[:, None]))

    @classmethod
    def stored(cls, text: bytes, sizes: IntArray) -> "TextRows":
        """Rows in whole words, one after the other. Raises ValueError."""
        text.decode()
        lengths = n_words(sizes)
        ends = WORD * (np.cumsum(lengths) - lengths)[:, None] + np.cumsum(sizes, axis=1) - 1
        if (sizes < 1).any() or (np.frombuffer(text, np.uint8)[ends] != SEPARATOR).any():
            raise ValueError("a text has another size")
        return cls._following(text, sizes)

    @classmethod
    def _following(cls, text: bytes, sizes: IntArray) -> "TextRows":
        lengths = n_words(sizes)
        starts = np.cumsum(lengths) - lengths
        found = np.frombuffer(text, np.uint8)
        odd = found < _SPACE
        n_allowed = WORD * lengths - sizes.sum(axis=1) + sizes.shape[1]  # separators, padding
        plain = np.ones(len(sizes), np.bool_)
        if np.count_nonzero(odd) > n_allowed.sum() or b'"' in text or b"\\" in text:
            odd |= (found == _QUOTE) | (found == _BACKSLASH)
            plain = np.add.reduceat(odd, WORD * starts, dtype=np.int64) == n_allowed
        return cls(found.view(np.uint64), starts, sizes, plain)

    @classmethod
    def joined(cls, parts: Sequence["TextRows"]) -> "TextRows":
        """The rows of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        parts = [cls.of([]), *parts]
        firsts = accumulate((len(part.words) for part in parts), initial=0)
        starts = [part.starts + first for part, first in zip(parts, firsts, strict=False)]
        return cls(
            np.concatenate([part.words for part in parts]),
            np.concatenate(starts),
            np.concatenate([part.sizes for part in parts]),
            np.concatenate([part.plain for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> list[str]:
        """The texts of a row."""
        picked = self.picked(slice(row, row + 1))
        return [picked.column(at)[0] for at in range(_N_COLUMNS)]

    def picked(self, rows: IntArray | slice) -> "TextRows":
        """Some of the rows, of the same words."""
        return TextRows(self.words, self.starts[rows], self.sizes[rows], self.plain[rows])

    @property
    def n_words(self) -> IntArray:
        """Words of each row: `[n_rows]`."""
        return n_words(self.sizes)

    def flat(self) -> NDArray[np.uint64]:
        """The words of each row, one row after the other."""
        n_words = self.n_words
        if len(self) and (self.starts[1:] == (self.starts + n_words)[:-1]).all():
            first = int(self.starts[0])
            return self.words[first : first + int(n_words.sum())]
        return self.words[span_indices(self.starts, n_words)]

    @property
    def bounds(self) -> IntArray:
        """Places of texts in the bytes: start of each row, then the end of each text and its byte.

        `[n_rows, n_columns + 1]`.
        """
        starts = WORD * self.starts[:, None]
        return np.hstack((starts, starts + np.cumsum(self.sizes, axis=1)))

    def first_text_word(self, at: int) -> NDArray[np.uint64]:
        """Word *at* of the first text of each row, as numbers in the order of texts: `[n_rows]`.

        >>> rows = TextRows.of([("ab", "c", ""), ("abcdefghij", "", "")])
        >>> [f"{word:016x}" for at in (0, 1) for word in rows.first_text_word(at).tolist()]
        ['6162000000000000', '6162636465666768', '0000000000000000', '696a000000000000']
        """
        n_left = self.sizes[:, 0] - 1 - WORD * at
        n_bits = (8 * np.clip(WORD - n_left, 0, WORD)).astype(np.uint64)  # behind the text
        words = self.words.take(self.starts + at, mode="clip").view(">u8")
        return words >> n_bits << n_bits

    def column(self, at: int) -> list[str]:
        """One text of each row."""
        text = self.words.view(np.uint8).data
        starts = WORD * self.starts + self.sizes[:, :at].sum(axis=1)
        ends = starts + self.sizes[:, at] - 1
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        return [str(text[first:end], "utf-8") for first, end in spans]


def n_words(sizes: IntArray) -> IntArray:
    """Words of rows with texts of these sizes, `[n_rows, n_columns]`."""
    n_bytes = np.zeros(len(sizes), np.int64)
    for of_column in sizes.T:  # in a third of the time of `sizes.sum(axis=1)`
        n_bytes += of_column
    return (n_bytes + WORD - 1) // WORD

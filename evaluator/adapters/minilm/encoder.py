"""The encoder of BERT: from ids of word pieces to one vector, in single precision.

Source: Devlin et al. 2018; the mean over the pieces as in Reimers and Gurevych 2019.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_N_HEADS: Final = 12
_TINY: Final = np.float32(1e-12)
_ERF: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


@dataclass(frozen=True, slots=True)
class Dense:
    """x -> x W + b."""

    weights: Floats  # [n_in, n_out]
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        out: Floats = rows @ self.weights + self.bias
        return out


@dataclass(frozen=True, slots=True)
class Norm:
    """Scales each row to mean 0 and variance 1, then applies weights and bias."""

    weights: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        centred = rows - rows.mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        out: Floats = centred / np.sqrt(variance + _TINY) * self.weights + self.bias
        return out


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention among the pieces, then a dense step for each; both are added to their input."""

    queries_keys_values: Dense
    attended: Dense
    attended_norm: Norm
    widened: Dense
    narrowed: Dense
    narrowed_norm: Norm

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
    """The layers of a model."""

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
    parts = [_dense(tensors, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
    return Layer(
        Dense(
            np.concatenate([part.weights for part in parts], axis=1),
            np.concatenate([part.bias for part in parts]),
        ),
        _dense(tensors, f"{name}.attention.output.dense"),
        _norm(tensors, f"{name}.attention.output"),
        _dense(tensors, f"{name}.intermediate.dense"),
        _dense(tensors, f"{name}.output.dense"),
        _norm(tensors, f"{name}.output"),
    )


def _dense(tensors: Mapping[str, Floats], name: str) -> Dense:
    return Dense(np.ascontiguousarray(tensors[f"{name}.weight"].T), tensors[f"{name}.bias"])


def _norm(tensors: Mapping[str, Floats], name: str) -> Norm:
    return Norm(tensors[f"{name}.LayerNorm.weight"], tensors[f"{name}.LayerNorm.bias"])


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

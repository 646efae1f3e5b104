"""The default embedder gives the same vectors everywhere; each text is embedded once."""

import os
import re
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.features import HashedNgrams, Remembered, embedding
from evaluator.core.features.embedding import cosines
from tests.repeats import examples

TEXTS = ["Book a flight to München, größer ✈", "search_flights", "天気予報", "", "a"]
PRINT = """
import sys, zlib
from evaluator.core.features import HashedNgrams
from tests.repeats import examples
print(zlib.crc32(HashedNgrams().embed(sys.argv[1:]).astype("<f8").tobytes()))
"""


def similarity(one, other):
    first, second = HashedNgrams().embed([one, other])
    return float(cosines(first, second[None])[0])


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_vectors_are_the_same_in_every_process(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", PRINT, *TEXTS], env=environment, capture_output=True, check=True
    )
    assert int(done.stdout) == CHECKSUM


CHECKSUM = 106438180
"""Of the vectors of TEXTS. A change of it is a new embedder: give it another name."""


def plain_vector(text):
    """The same in Python's own whole numbers."""
    words = re.sub(r"[\W_]+", " ", text.casefold()).split()
    ngrams = {
        f" {word} "[start : start + size]
        for word in words
        for size in (3, 4, 5)
        for start in range(len(word) + 3 - size)
    }
    vector = [0] * 512
    for ngram in ngrams:
        mixed = len(ngram)
        for character in ngram:
            mixed = (mixed ^ ord(character)) * 0x9E3779B97F4A7C15 % 2**64
            mixed ^= mixed >> 32
        vector[mixed >> 55] += 1 if mixed & 1 else -1
    return vector


@pytest.mark.parametrize("text", [*TEXTS, " ".join(TEXTS), "x" * 1_000, "a_b  c-d e1"])
def test_vectors_equal_plain_arithmetic(text):
    assert HashedNgrams().embed([text])[0].tolist() == plain_vector(text)


def test_vectors_have_whole_numbers_so_that_sums_are_exact():
    vectors = HashedNgrams().embed(TEXTS)
    assert vectors.shape == (len(TEXTS), 512)
    assert (vectors == np.rint(vectors)).all()
    assert vectors.any(axis=1).tolist() == [True, True, True, False, True]


def test_one_n_gram_is_one_entry():
    # " a " is the only n-gram of 3 to 5 characters
    assert np.abs(HashedNgrams().embed(["a"])).sum() == 1
    # " ab", "ab ", " ab "; a word that comes twice adds nothing
    assert np.abs(HashedNgrams().embed(["ab ab"])).sum() == 3


def test_n_grams_stay_within_words():
    apart, together = HashedNgrams().embed(["ab cd", "cd, AB!"])
    assert (apart == together).all()


@pytest.mark.parametrize(
    ("query", "near", "far"),
    [
        ("book a flight", "search_flights", "weather_forecast"),
        ("Wie wird das Wetter?", "wetterbericht", "flugsuche"),
        ("translate this text", "text translation", "image resizing"),
    ],
)
def test_texts_that_share_parts_of_words_are_more_similar(query, near, far):
    assert similarity(query, near) > similarity(query, far) + 0.1


@settings(max_examples=examples(100))
@given(st.text(max_size=20), st.text(max_size=20))
def test_similarity_is_symmetric_bounded_and_one_for_the_same(one, other):
    assert similarity(one, other) == similarity(other, one)
    assert -1 <= similarity(one, other) <= 1
    [vector] = HashedNgrams().embed([one])
    assert similarity(one, one) == pytest.approx(1.0 if vector.any() else 0.0)
    assert not vector.any() or any(character.isalnum() for character in one.casefold())


def test_a_text_of_few_ngrams_can_have_the_vector_of_an_empty_one():
    """Its two n-grams are in one entry, with opposite signs."""
    assert not HashedNgrams().embed(["W:Ó"]).any()


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(TEXTS), max_size=6))
def test_a_vector_does_not_depend_on_other_texts_of_the_call(texts):
    together = HashedNgrams().embed(texts)
    alone = [HashedNgrams().embed([text])[0] for text in texts]
    assert together.tobytes() == np.array(alone).tobytes()


class Counting(HashedNgrams):
    """An embedder that records the requested texts."""

    def __init__(self):
        self.asked = []

    def embed(self, texts):
        self.asked += texts
        return super().embed(texts)


def test_a_remembered_text_is_embedded_once():
    counting = Counting()
    remembered = Remembered(counting)
    first = remembered.embed(["a", "b", "a"])
    again = remembered.embed(["b", "c", "a"])
    assert counting.asked == ["a", "b", "c"]
    assert (first[[1, 0]] == again[[0, 2]]).all()
    assert remembered.name == HashedNgrams.name


def test_the_least_recently_used_text_is_evicted(monkeypatch):
    monkeypatch.setattr(embedding, "MAX_REMEMBERED_TEXTS", 2)
    counting = Counting()
    remembered = Remembered(counting)
    remembered.embed(["a", "b"])
    remembered.embed(["a"])
    remembered.embed(["c"])
    assert len(remembered._vectors) == 2
    counting.asked.clear()
    remembered.embed(["a", "c"])
    assert counting.asked == []
    remembered.embed(["b"])
    assert counting.asked == ["b"]


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=5), max_size=8))
def test_remembering_changes_no_vector_and_stays_within_its_limit(batches):
    remembered = Remembered(HashedNgrams())
    with patch.object(embedding, "MAX_REMEMBERED_TEXTS", 3):
        for texts in batches:
            expected = HashedNgrams().embed(texts)
            assert remembered.embed(texts).tobytes() == expected.tobytes()
            assert len(remembered._vectors) <= 3

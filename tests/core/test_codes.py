"""Candidate ids as small integers: the same id always has the same code, no two share one."""

import random

import pytest

from evaluator.core.codes import CandidateCodes
from evaluator.core.strings import PackedStrings

NASTY = ["a", "a\0", "a\0\0", "", "é", "éa", "x" * 7, "x" * 8, "x" * 8 + "\0", "x" * 63, "x" * 64]


def ids_of(codes, texts):
    return [codes.ids[code] for code in codes.of_texts(PackedStrings.of(texts)).tolist()]


@pytest.mark.parametrize("n_before", [0, 1, 5, len(NASTY)])
def test_ids_that_resemble_each_other_keep_apart(n_before):
    codes = CandidateCodes()
    ids_of(codes, NASTY[:n_before])
    for _ in range(3):
        assert ids_of(codes, NASTY) == NASTY
    assert len(codes.ids) == len(NASTY)


def test_an_id_of_more_than_64_bytes_has_a_code_like_any_other():
    codes = CandidateCodes()
    for texts in (["x" * 65, "x" * 64], ["x" * 64, "x" * 65, "y"], ["y"]):
        assert ids_of(codes, texts) == texts
    assert len(codes.ids) == 3


def test_codes_of_strings_and_of_texts_agree():
    codes, dice = CandidateCodes(), random.Random(7)
    names = [f"tool-{n}" for n in range(300)] + NASTY
    for _ in range(30):
        some = dice.choices(names, k=dice.randrange(200))
        assert codes.of(some, len(some)).tolist() == codes.of_texts(PackedStrings.of(some)).tolist()
    assert len(codes.ids) == len(set(codes.ids))


def test_new_ids_that_repeat_in_a_batch_are_indexed_once(monkeypatch):
    """As long as most ids of a batch are known; batches of mostly new ones are not looked up."""
    monkeypatch.setattr("evaluator.core.codes._PATIENCE", 0)
    rebuilt = []
    index = CandidateCodes._index
    monkeypatch.setattr(CandidateCodes, "_index", lambda self: (rebuilt.append(1), index(self)))
    codes = CandidateCodes()
    ids_of(codes, [f"known-{n}" for n in range(1_000)])
    assert len(rebuilt) == 1
    batch = [f"{trace}-{n}" for trace in range(20) for _ in range(5) for n in range(40)]
    assert ids_of(codes, batch) == batch
    assert len(rebuilt) == 2  # 800 new ones of 4,000, at once
    assert ids_of(codes, batch) == batch
    assert len(rebuilt) == 2  # nothing is new any more


def test_equal_hashes_confuse_nothing(monkeypatch):
    monkeypatch.setattr("evaluator.core.codes._hashes", lambda words: words[0] * 0)
    codes = CandidateCodes()
    for _ in range(3):
        assert ids_of(codes, NASTY) == NASTY

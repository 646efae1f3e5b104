"""JSON texts of columns, and rows of them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.columns.grades import GradeColumns
from evaluator.wire.outputs import texts
from tests.repeats import examples

strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text(
    st.characters(max_codepoint=0x80), max_size=8
)
scores = st.none() | st.floats(allow_nan=False, allow_infinity=False)
grades = st.dictionaries(strings, st.integers(0, 31).map(float) | st.floats(0, 31), max_size=4)


def read(found):
    return [json.loads(text) for text in found.split()]


@settings(max_examples=examples(100))
@given(st.lists(strings), st.lists(st.integers(-(2**70), 2**70)), st.lists(st.integers(0, 1_100)))
def test_strings_integers_and_ranks_are_read_as_what_they_were(some, numbers, ranks):
    assert read(texts.strings(some)) == some
    assert read(texts.integers(numbers)) == numbers
    assert read(texts.ranks(ranks)) == [rank or None for rank in ranks]


@settings(max_examples=examples(200))
@given(st.lists(grades))
def test_grades_are_read_as_what_they_were_and_whole_ones_are_integers(rows):
    found = texts.grades(GradeColumns.of(rows))
    assert read(found) == rows
    for text, row in zip(found.split(), rows, strict=True):
        for read_grade, grade in zip(json.loads(text).values(), row.values(), strict=True):
            assert isinstance(read_grade, int) == (grade == int(grade))


@settings(max_examples=examples(100))
@given(st.data(), st.integers(0, 3), st.integers(0, 4))
def test_tops_are_pairs_of_ids_and_scores(data, n, n_lists):
    ids = data.draw(st.lists(strings, min_size=n * n_lists, max_size=n * n_lists))
    given = data.draw(st.lists(scores, min_size=len(ids), max_size=len(ids)))
    pairs = [[name, score] for name, score in zip(ids, given, strict=True)]
    expected = [pairs[n * at : n * (at + 1)] for at in range(n_lists)]
    assert read(texts.tops(ids, given, n, n_lists)) == expected


def test_tops_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match="1 items and 1 scores for 2 lists of 1"):
        texts.tops(["a"], [1.0], 1, 2)
    with pytest.raises(ValueError, match="2 items and 1 scores"):
        texts.tops(["a", "b"], [1.0], 1, 2)

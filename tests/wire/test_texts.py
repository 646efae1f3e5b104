"""JSON texts of columns, and rows of them."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.columns.grades import GradeColumns
from evaluator.core.columns.interning import DictionaryColumn, Interner
from evaluator.core.measures import MISSING
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
@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 2**70))
def test_integers_and_ranks_are_read_as_written(numbers, plus):
    column = np.array(numbers, np.int64)
    assert read(texts.integers(column)) == numbers
    assert read(texts.integers(column, plus=plus)) == [number + plus for number in numbers]
    assert read(texts.ranks(column)) == [rank or None for rank in numbers]


@settings(max_examples=examples(100))
@given(st.lists(st.lists(strings)))
def test_an_interner_keeps_the_texts_of_its_values(batches):
    interner, pools = Interner(), set()
    for batch in batches:
        numbers = interner.of(batch, len(batch))
        found = texts.names(DictionaryColumn(interner.values_by_number, numbers))
        assert read(found) == batch
        pools.add(id(found.pool))
    assert len(pools) <= 1


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.tuples(st.integers(MISSING, 40), st.integers(MISSING, 40)))))
def test_values_equal_their_units_without_missing_ones(batches):
    values = texts.values_under(("second", "first", "again"), (1, 0, 1), 2)
    for batch in batches:
        units = np.array(batch, np.int64).reshape(-1, 2)
        expected = [{"second": second, "first": first, "again": second} for first, second in batch]
        assert read(values.of(units)) == [
            {name: n * texts.UNIT for name, n in row.items() if n != MISSING} for row in expected
        ]


@settings(max_examples=examples(200))
@given(st.lists(grades))
def test_grades_are_read_as_written_and_whole_ones_are_integers(rows):
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
    numbers = np.array(given, np.float64)
    expected = [pairs[n * at : n * (at + 1)] for at in range(n_lists)]
    assert read(texts.tops(DictionaryColumn.of(ids), numbers, n, n_lists)) == expected

"""Rows from columns: the compiled part and Python write the same bytes, and no byte too far."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.core.columns.grades import GradeColumns
from evaluator.wire.native import library, rows
from evaluator.wire.outputs.columns import Grades, Integers, Ranks, Ready, Strings, Tops, rows_of
from tests.repeats import examples

MARK = 0xA5

strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text(
    st.characters(max_codepoint=0x80), max_size=8
)
grades = st.dictionaries(strings, st.integers(0, 31).map(float), max_size=4)
fractions = st.dictionaries(strings, st.floats(0, 31), max_size=2)


@st.composite
def columns(draw):
    """Columns of every kind, and how many rows they make; some share a source."""
    n, n_top = draw(st.integers(0, 5)), draw(st.integers(0, 3))

    def some(items, each=n):
        return draw(st.lists(items, min_size=each, max_size=each))

    score = st.none() | st.floats(allow_nan=False, allow_infinity=False)
    sources = [
        Strings(some(strings)),
        Integers(some(st.integers(-(2**63), 2**63 - 1))),
        Integers(some(st.integers(-(2**70), 2**70))),
        Ranks(some(st.integers(0, 1_000))),
        Grades(GradeColumns.of(some(grades))),
        Grades(GradeColumns.of(some(grades | fractions))),
        Ready([b"[%d]" % number for number in some(st.integers())]),
        Tops(some(strings, n * n_top), some(score, n * n_top), n_top, n),
    ]
    shared = Strings(some(strings, 2 * n))
    chosen = draw(st.permutations([*sources, shared, shared]))
    return [(f"{place}|".encode(), source) for place, source in enumerate(chosen)], n


def in_python(asked, n):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "BUILT", None)
        return rows_of(asked, b"|end", n_rows=n)


@settings(max_examples=examples(200))
@given(columns())
def test_both_ways_write_the_same_bytes(drawn):
    asked, n = drawn
    written = rows_of(asked, b"|end", n_rows=n)
    assert written == in_python(asked, n)
    assert len(written) == n


@settings(max_examples=examples(100))
@given(columns())
def test_no_row_takes_more_room_than_was_counted_for_it(drawn):
    made = []

    def marked(size, dtype):
        made.append(np.full(size + 64, MARK, dtype))
        made.append(size)
        return made[-2]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "np", SimpleNamespace(empty=marked, uint8=np.uint8))
        asked, n = drawn
        rows_of(asked, b"|end", n_rows=n)
    out, size = made
    assert (out[size:] == MARK).all()


@pytest.mark.parametrize("text", ["\x1f" * 9, "".join(map(chr, range(0x100))), "\U0010ffff" * 9])
@pytest.mark.parametrize(
    "source",
    [
        lambda text: Strings([text]),
        lambda text: Grades(GradeColumns.of([{text: 2.0}])),
        lambda text: Tops([text] * 3, [1e-300, None, -1.5], 3, 1),
    ],
)
def test_what_needs_most_room_fits(source, text):
    asked = [(b"", source(text))]
    assert rows_of(asked, b"|end", n_rows=1) == in_python(asked, 1)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize(
    "source",
    [
        lambda: Strings(["a"]),
        lambda: Strings(["a"] * 3),
        lambda: Ready([b"1"]),
        lambda: Integers([1]),
        lambda: Ranks([1]),
        lambda: Grades(GradeColumns.of([{"a": 1.0}])),
        lambda: Tops(["a"], [1.0], 1, 1),
        lambda: Tops(["a"], [1.0], 1, 2),
        lambda: Tops(["a", "b"], [1.0], 1, 2),
        lambda: Tops(["a"] * 3, [1.0] * 3, 2, 2),
    ],
)
def test_a_source_without_an_item_for_each_row_is_refused_before_anything_is_read(
    monkeypatch, built, source
):
    if not built:
        monkeypatch.setattr(library, "BUILT", None)
    with pytest.raises(ValueError, match="items"):
        rows_of([(b"", source())], b"|end", n_rows=2)


def test_two_columns_that_share_a_source_need_two_items_for_each_row():
    shared = Strings(["a", "b", "c"])
    with pytest.raises(ValueError, match="3 items for 2 rows of 2 columns"):
        rows_of([(b"", shared), (b"", shared)], b"|end", n_rows=2)


def test_grades_that_do_not_match_their_counts_are_refused():
    rows = GradeColumns.of([{"a": 1.0}, {"b": 2.0}])
    rows.grades = rows.grades[:1]
    with pytest.raises(ValueError, match="items"):
        rows_of([(b"", Grades(rows))], b"|end", n_rows=2)

"""Hashes of keys: different names differ, and the compiled decoder computes the same."""

from hypothesis import given
from hypothesis import strategies as st

from evaluator.core.columns.key_hashes import key_of

ODD = ["a", "1:a", ":", "12", "ü", "\x00", "\x00\x00", "\u2028", "🙂", "a" * 256, '"', "\\"]
ids = st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


@given(names=st.lists(st.tuples(ids, ids), unique=True, max_size=6))
def test_different_names_have_different_keys(names):
    assert len({key_of(*name) for name in names}) == len(names)


def test_an_id_may_be_a_prefix_of_another():
    names = [
        ("ab", "c"),
        ("a", "bc"),
        ("a", "b"),
        ("\x01\x00a", "b"),
        ("a\x1f", "b"),
        ("a", "\x1fb"),
    ]
    assert len({key_of(*name) for name in names}) == len(names)

"""Weights records: the canonical text of a JSON value, checksums, and refusals."""

import doctest
import hashlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from evaluator.wire import canonical as canonical_module
from evaluator.wire.canonical import canonical, checksum_of
from evaluator.wire.weights.checksum import WeightsRefused
from evaluator.wire.weights.weights_record import read_weights, with_checksum
from tests.repeats import examples
from tests.tidy.tree import ROOT

RECORD = {
    "format": 1,
    "model": "m",
    "epoch": 0,
    "version": 3,
    "parent": None,
    "weights": [0.5, -1.0],
    "feature_names": ["phi_rel", "phi_hist"],
    "history": [{"epoch": 1, "mean_loss": 0.25, "groups": 7}],
    "more": {"b": 1, "a": [True, None, "\u00e4"]},
}


def test_docstring_examples_are_correct():
    assert doctest.testmod(canonical_module)[:2] == (0, 1)


@pytest.mark.parametrize(
    ("bits", "text"),  # from appendix B of RFC 8785
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_in_the_rfc(bits, text):
    import struct

    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value).decode() == text


def test_members_are_sorted_by_their_utf_16_code_units():
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    text = canonical(dict.fromkeys(names, 0)).decode()
    assert list(json.loads(text)) == [
        "\r",
        "1",
        "\u0080",
        "\u00f6",
        "\u20ac",
        "\U0001f600",
        "\ufb33",
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(100))
@given(json_values)
def test_the_canonical_text_is_unique_and_read_back_to_the_value(value):
    text = canonical(value)
    assert json.loads(text, parse_int=float) == value
    assert canonical(json.loads(text)) == text


def test_non_finite_numbers_have_no_canonical_text():
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="is not a number in JSON"):
            canonical({"a": value})


def test_a_checksum_covers_all_other_members():
    """Written by hand: members ordered by name, 0.5 and -1, no spaces."""
    text = (
        '{"epoch":0,"feature_names":["phi_rel","phi_hist"],"format":1,'
        '"history":[{"epoch":1,"groups":7,"mean_loss":0.25}],"model":"m",'
        '"more":{"a":[true,null,"\u00e4"],"b":1},"parent":null,"version":3,"weights":[0.5,-1]}'
    )
    assert checksum_of(RECORD) == hashlib.sha256(text.encode()).hexdigest()
    assert with_checksum(RECORD) == {**RECORD, "checksum": checksum_of(RECORD)}
    assert checksum_of({**RECORD, "checksum": "any"}) == checksum_of(RECORD)


def test_a_record_is_read_in_any_order_and_layout():
    whole = with_checksum(RECORD)
    for text in (
        json.dumps(whole, indent=4),
        json.dumps(dict(reversed(whole.items())), ensure_ascii=False),
        json.dumps(whole).replace("-1.0", "-1").replace("0.5", "5e-1"),
    ):
        weights = read_weights(text.encode())
        assert (weights.weights, weights.feature_names) == ([0.5, -1.0], ["phi_rel", "phi_hist"])
        assert weights.checksum == checksum_of(RECORD)


def test_the_example_of_the_page_is_a_record_with_its_checksum():
    page = (ROOT / "docs" / "learning.md").read_text("utf-8")
    (example,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    weights = read_weights(example.encode())
    assert weights.checksum == checksum_of(json.loads(example))


def test_a_minimal_record_is_read():
    least = {"format": 1, "weights": [1], "feature_names": ["f0"]}
    weights = read_weights(json.dumps(least).encode())
    assert (weights.weights, weights.model) == ([1.0], "")
    assert weights.checksum == checksum_of(least)


@pytest.mark.parametrize("changed", [{"weights": [0.5, -1.5]}, {"model": "n"}, {"new": 0}])
def test_a_changed_record_is_refused(changed):
    text = json.dumps({**with_checksum(RECORD), **changed}).encode()
    with pytest.raises(WeightsRefused, match="it was changed"):
        read_weights(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "no JSON: "),
        (b"\xff", "no JSON: "),
        (b"[" * 100_000, "no JSON: "),
        (b"[]", "not a weights record: "),
        (b'{"format": 2, "weights": [1], "feature_names": ["a"]}', "not a weights record: format"),
        (b'{"format": 1, "feature_names": ["a"]}', "not a weights record: weights"),
        (b'{"format": 1, "weights": [], "feature_names": []}', "not a weights record: weights"),
        (b'{"format": 1, "weights": [NaN], "feature_names": ["a"]}', "no JSON: "),
        (b'{"format": 1, "weights": [1, 2], "feature_names": ["a"]}', "2 weights for 1 feature_n"),
        (b'{"format": 1, "weights": ["1"], "feature_names": ["a"]}', "weights.0"),
        (b'{"format": 1, "weights": [1], "feature_names": ["a"], "checksum": "x"}', "checksum"),
    ],
)
def test_an_invalid_record_is_refused_in_one_line(text, message):
    with pytest.raises(WeightsRefused) as refused:
        read_weights(text)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_invalid_record_gets_no_checksum():
    with pytest.raises(ValidationError):
        with_checksum({**RECORD, "weights": [1.0]})


TABLE = {"format": 1, "successes": [["graph", "a", 5, 1], ["tool", "b", 1 << 60, 1 << 20]]}


def test_a_table_of_success_rates_is_read_with_the_weights():
    record = with_checksum({**RECORD, "success_rates": {**TABLE, "over_limit": 2}})
    table = read_weights(json.dumps(record).encode()).table()
    assert table.state() == {**TABLE, "over_limit": 2}
    assert read_weights(json.dumps(RECORD).encode()).table() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"successes": [["page", "a", 5, 1]]},
        {"successes": [["tool", "a", 5]]},
        {"successes": [["tool", "a", (1 << 40) + 1, 1]]},
        {"successes": [["tool", "a", -1, 1]]},
        {"successes": [["tool", "a", 0.5, 1]]},
        {"over_limit": -1},
        {"over_limit": None},
    ],
)
def test_an_impossible_table_is_refused(changes):
    table = {**TABLE, "over_limit": 0, **changes}
    with pytest.raises(WeightsRefused, match="success_rates"):
        read_weights(json.dumps({**RECORD, "success_rates": table}).encode())

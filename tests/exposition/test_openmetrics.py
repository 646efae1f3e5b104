"""Texts of samples, and the strict reader that refuses data that loaders drop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse

from evaluator.exposition.series import Spec, clean, head, header
from tests.exposition.checked import Checked, ExpositionError

SPEC = Spec("some_total", "counter", 'What "it" is,\nwith \\.', ("model",))
GOOD = (
    "# HELP some What it is.",
    "# TYPE some counter",
    'some_total{model="a"} 0 60',
    'some_total{model="a"} 1.5 120',
    'some_total{model="b"} 0 60',
    "# TYPE other unknown",
    "other 3 60",
    "# EOF",
)


def read(*lines: str) -> Checked:
    checked = Checked()
    passed = list(checked.lines(line.encode() for line in lines))
    assert passed == [line.encode() for line in lines]
    return checked


def test_a_valid_text_is_parsed() -> None:
    checked = read(*GOOD)
    assert checked.last == {
        b'some_total{model="a"}': b"1.5",
        b'some_total{model="b"}': b"0",
        b"other": b"3",
    }
    assert (checked.n_samples, checked.first_time, checked.last_time) == (4, 60, 120)


@pytest.mark.parametrize(
    ("place", "line", "why"),
    [
        (3, 'some_total{model="a"} 1.5 60', "back in time"),
        (3, 'some_total{model="a"} 1.5 0', "back in time"),
        (3, 'some_total{model="a"} 1.5', "no sample"),
        (3, 'some_total{model="a"} 1.5 120.5', "no sample"),
        (3, 'some_total{model="a"} NaN 120', "no number"),
        (3, 'some_total{model="a"} -1 120', "no number"),
        (4, 'some_total{model="a"} 1 180', "a sum falls"),
        (4, 'other_total{model="b"} 0 60', "no series of some_total"),
        (4, 'some{model="b"} 0 60', "no series of some_total"),
        (4, 'some_total{model="b} 0 60', "no series"),
        (4, 'some_total{model="\\b"} 0 60', "no series"),
        (4, 'some_total{model="b",model="c"} 0 60', "a label twice"),
        (4, 'some_total{1="b"} 0 60', "no series"),
        (5, 'some_total{model="a"} 2 180', "a series in two pieces"),
        (5, "# TYPE some counter", "a family in two pieces"),
        (5, "# TYPE other histogram", "not understood"),
        (5, "# a remark", "not understood"),
        (0, "other 3 60", "no series of any family"),
        (7, "", "no sample"),
        (5, "# EOF", "after the end"),
    ],
)
def test_an_invalid_line_is_refused(place: int, line: str, why: str) -> None:
    lines = [*GOOD[:place], line, *GOOD[place:]]
    if place == 3:
        del lines[4]
    with pytest.raises(ExpositionError, match=why):
        read(*lines)


def test_a_text_without_eof_is_refused() -> None:
    with pytest.raises(ExpositionError, match="the end is missing"):
        read(*GOOD[:-1])


@given(st.text(max_size=8), st.text(st.characters(exclude_categories=[]), max_size=8))
def test_any_label_value_is_read_back_unchanged(value: str, odd: str) -> None:
    labels = {"model": clean(value), "run": clean(odd)}
    lines = [*header(SPEC), head(SPEC.name, labels) + b" 2 60", b"# EOF"]
    read(*(line.decode() for line in lines))
    (family,) = parse(b"\n".join(lines).decode() + "\n")
    (sample,) = family.samples
    assert (sample.labels, sample.value, float(sample.timestamp)) == (labels, 2.0, 60)
    assert family.documentation == SPEC.meaning

"""Lists by the compiled part and by numpy: the same to the last bit; its limits; its memory."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from evaluator.core.measures import dense
from evaluator.core.native import library, lists
from tests.repeats import repeated

FOLDER = Path(library.__file__).parent
HARNESS = Path(__file__).with_name("native_harness.c")
FIELDS = "ranks grades columns n_ranked query_of judged_grades ideal_grades n_relevant".split()
SCORES = {
    "random": lambda rng, shape: rng.random(shape),
    "tied": lambda rng, shape: rng.integers(-2, 3, shape) * 1.0,
    "of any size": lambda rng, shape: rng.normal(size=shape) * 10.0 ** rng.integers(-320, 305),
    "equal as floats": lambda rng, shape: 1 + rng.integers(0, 9, shape) * 2.0**-50,
    "zeros of both signs": lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.0, -0.0),
}
GRADES = {
    "whole": lambda rng, shape: rng.integers(0, 5, shape) * 1.0,
    "fractional": lambda rng, shape: rng.random(shape) * 31,
    "halves, negative ones too": lambda rng, shape: rng.integers(-3, 62, shape) * 0.5,
    "hardly apart": lambda rng, shape: 1 + rng.integers(0, 3, shape) * 2.0**-52,
    "zeros of both signs": lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.0, -0.0),
}


@pytest.fixture
def both(monkeypatch):
    """The lists as they are found with the compiled part, and without."""

    def found(*arguments, **options):
        ways = []
        for built in (library.BUILT, None):
            with monkeypatch.context() as patch:
                patch.setattr(library, "BUILT", built)
                ways.append(dense.dense_lists(*arguments, **options))
        return ways

    return found


def bits(array):
    whole = np.ascontiguousarray(array)
    return whole.view(np.int64) if whole.dtype == np.float64 else whole


def assert_same(found, expected):
    for field in FIELDS:
        here, there = getattr(found, field), getattr(expected, field)
        assert (here.shape, here.dtype) == (there.shape, there.dtype), field
        assert np.array_equal(bits(here), bits(there)), field
    assert found.ties is expected.ties is None


def some_missing(rng, numbers, *others):
    """The numbers, some of them NaN or one of *others*."""
    for other in (np.nan, *others):
        if rng.random() < 0.5:
            numbers = np.where(rng.random(numbers.shape) < rng.random(), other, numbers)
    return numbers


def test_it_was_built():
    assert library.BUILT is not None, (
        "no C compiler when the package was installed? Then `make clean install`"
    )


@pytest.mark.parametrize("grades_of", GRADES.values(), ids=GRADES)
@pytest.mark.parametrize("scores_of", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("seed", repeated(5, quick=1))
def test_lists_are_those_of_numpy(both, seed, scores_of, grades_of):
    rng = np.random.default_rng([20261122, seed])
    narrow = rng.integers(1, lists.MOST_COLUMNS + 3, 8).tolist()
    for width in (1, 2, 3, *narrow, lists.MOST_COLUMNS, 200, 1000):
        shape = (int(rng.integers(0, 5 if width > 100 else 40)), width)
        scores = some_missing(rng, scores_of(rng, shape), np.inf, -np.inf)
        assert_same(*both(scores, some_missing(rng, grades_of(rng, shape))))


@pytest.mark.parametrize("seed", range(20))
def test_what_decides_ties_decides_them_in_both(both, seed):
    rng = np.random.default_rng([20261123, seed])
    shape = (int(rng.integers(1, 40)), int(rng.integers(1, lists.MOST_COLUMNS + 1)))
    scores, asked = rng.integers(0, 3 * shape[1], shape) / 7, []
    by_name = rng.permutation(shape[1])

    def tie_order(rows):
        asked.append(rows)
        return np.array([np.lexsort((by_name, -scores[row])) for row in rows.tolist()])

    assert_same(*both(scores, some_missing(rng, rng.random(shape)), tie_order=tie_order))
    tied = [row for row in range(shape[0]) if len(set(scores[row].tolist())) < shape[1]]
    assert all(rows.tolist() == tied for rows in asked)
    assert len(asked) == 2 * bool(tied)


@pytest.mark.parametrize("wrong", [[[0, 3]], [[-1, 0]], [[0]]])
def test_positions_that_are_no_columns_are_refused(wrong):
    with pytest.raises(ValueError, match="positions are not those of 2 columns"):
        lists.native_lists(
            library.BUILT, np.zeros((1, 2)), np.zeros((1, 2)), lambda rows: np.array(wrong)
        )


def test_rows_that_lie_apart_in_memory_are_taken_too(both):
    scores, grades = np.arange(60.0).reshape(2, 5, 6)
    for turned in (scores.T, scores[::2], scores[:, ::-2]):
        assert_same(*both(turned, grades.reshape(-1)[: turned.size].reshape(turned.shape)))


def test_its_limits_are_those_of_python():
    text = (FOLDER / "basics.h").read_text()
    limits = {name: int(value) for name, value in re.findall(r"(MOST_COLUMNS) = (\d+)", text)}
    assert limits == {"MOST_COLUMNS": lists.MOST_COLUMNS}
    assert f"NEVER_RANKED = 1 << {dense.NEVER_RANKED.bit_length() - 1}" in text


@pytest.mark.slow
def test_no_byte_too_far_is_read_or_written(tmp_path):
    program = tmp_path / "harness"
    flags = "-std=c11 -g -O1 -Wall -Wextra -Werror".split()
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", *flags, "-o", program, HARNESS, "-lm"], check=True)
    done = subprocess.run([program], check=True, capture_output=True, text=True)
    assert done.stdout == f"{lists.MOST_COLUMNS * 20 + 100} batches\n"

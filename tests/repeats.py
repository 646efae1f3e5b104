"""Repetitions of tests on other seeds: a few in the quick set, many in the complete set."""

import pytest

IS_QUICK = False
"""Whether slow tests are left out; set before any test is imported."""


def examples(n: int) -> int:
    """The number of examples of Hypothesis: *n*, and an eighth of that in the quick set."""
    return n // 8 if IS_QUICK else n


def sized(n: int, *, quick: int) -> int:
    """The size of a world: *n*, and *quick* in the quick set."""
    return quick if IS_QUICK else n


def in_shares(n: int, *, quick: int) -> list:
    """*n* as two parameters that add up to it: *quick*, and the rest, left to `make test`."""
    return [pytest.param(quick), *left_out(pytest.param(n - quick, marks=pytest.mark.slow))]


def repeated(times: int, *, quick: int) -> list:
    """Parameters 0 .. times - 1; those from *quick* on are left to `make test`."""
    rest = (pytest.param(part, marks=pytest.mark.slow) for part in range(quick, times))
    return [*map(pytest.param, range(quick)), *(left_out(*rest) if quick else rest)]


def first_quick(*cases: object) -> list:
    """Parameters of which the first is in the quick set; the others are left to `make test`."""
    first, *rest = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [
        pytest.param(*first),
        *left_out(*(pytest.param(*case, marks=pytest.mark.slow) for case in rest)),
    ]


def left_out(*cases: object) -> tuple:
    """The slow ones of the parameters: in the quick set none, so that they are not collected."""
    return () if IS_QUICK else cases


def slow_in_file_if(condition: bool) -> tuple:
    """For tests of less than a second that are left to `make test`, with their file."""
    return (pytest.mark.slow(alone=False),) if condition else ()


def slow_if(condition: bool) -> tuple:
    return (pytest.mark.slow,) if condition else ()

"""The examples in the docstrings are correct."""

import doctest

import pytest

from evaluator import tables
from evaluator.comparison import paired


@pytest.mark.parametrize("module", [paired, tables])
def test_the_doctests_of_a_module_pass(module):
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)

"""The examples in the docstrings hold."""

import doctest

import pytest

from evaluator.compare import formats, paired, student


@pytest.mark.parametrize("module", [formats, paired, student])
def test_the_examples_of_a_module_hold(module):
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)

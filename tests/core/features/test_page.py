"""The statements of the page of features are true."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "features.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_examples_are_found():
    assert EXAMPLES


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_have_the_documented_results(text):
    names = {}
    n_checked = 0
    for line in text.splitlines():
        expression, _, value = line.partition("  # ")
        if value:
            assert repr(eval(expression, names)) == value
            n_checked += 1
        else:
            exec(line, names)
    assert n_checked

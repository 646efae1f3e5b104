"""The examples of docs/library.md run, with the results on the page."""

import ast
import re

from tests.tidy.tree import ROOT


def examples():
    """The lines of Python on the page: statements, with the outputs in their comments."""
    page = (ROOT / "docs" / "library.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    for line in "\n".join(blocks).splitlines():
        code, _, promised = line.partition("  # ")
        if code.strip():
            yield code, promised.split(", parallel")[0]


def test_documented_examples_are_correct():
    names, n_checked = {}, 0
    for code, promised in examples():
        if promised:
            assert eval(code, names) == ast.literal_eval(promised), code
            n_checked += 1
        else:
            exec(code, names)
    assert n_checked == 14

"""The walks of CONTRIBUTING.md have existing functions, and are short."""

import ast
import re

import pytest

from tests.tidy.tree import ROOT, parsed

pytestmark = pytest.mark.xdist_group("modules")  # parsed once

MOST_FUNCTIONS = 25


def walks():
    """Dotted names of the functions of each walk, relative to `evaluator`, by its title."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = page.split("\n## Three walks\n")[1].split("\n## ")[0]
    for walk in section.split("\n### ")[1:]:
        title, _, text = walk.partition("\n")
        yield title, re.findall(r"^\d+\. `([\w.]+)`", text, re.MULTILINE)


def is_defined(name):
    """Whether a module defines the function, or a class with the method, of a dotted name."""
    parts = name.split(".")
    for n in range(len(parts) - 1, 0, -1):
        path = ROOT.joinpath("evaluator", *parts[:n]).with_suffix(".py")
        if path.exists():
            body = parsed(path).body
            for part in parts[n:]:
                found = [node for node in body if getattr(node, "name", None) == part]
                if not found:
                    return False
                body = found[0].body
            return isinstance(found[0], ast.FunctionDef | ast.AsyncFunctionDef)
    return False


def test_every_function_of_a_walk_exists():
    assert not [name for _, names in walks() for name in names if not is_defined(name)]


def test_a_walk_has_at_most_as_many_functions_as_a_reader_can_follow():
    lengths = {title: len(names) for title, names in walks()}
    assert len(lengths) == 3
    assert all(10 < n <= MOST_FUNCTIONS for n in lengths.values()), lengths


def test_an_undefined_name_is_detected():
    assert is_defined("core.engine.engine.Engine.receive")
    assert not is_defined("core.engine.engine.Engine.received")
    assert not is_defined("core.engine.engine.Engine")
    assert not is_defined("core.motor.receive")

"""Modules and functions stay small; every exception has its reason here."""

import pytest

from tests.tidy.tree import functions, modules, name_of

pytestmark = pytest.mark.xdist_group("modules")  # parsed once

MODULE_LINES = 400
FUNCTION_LINES = 60
CONSTRUCTOR_PARAMETERS = 8

EXCEPTIONS: dict[str, str] = {
    "evaluator/config/settings.py": "a table: one field per setting, and nothing else",
}
"""By "path" or "path::function": why this one is allowed to be longer."""


def lines_of(path):
    return len(path.read_text("utf-8").splitlines())


def long_ones(path):
    """Names and lengths of everything in a module that is too long, itself included."""
    if lines_of(path) > MODULE_LINES:
        yield name_of(path), lines_of(path)
    for name, node in functions(path):
        length = node.end_lineno - node.lineno + 1
        if length > FUNCTION_LINES:
            yield f"{name_of(path)}::{name}", length


def test_the_modules_of_the_package_are_found():
    assert len(modules()) > 5
    assert sum(1 for path in modules() for _ in functions(path)) > 30


def test_a_module_and_its_functions_are_short():
    found = (each for path in modules() for each in long_ones(path))
    assert not {name: length for name, length in found if name not in EXCEPTIONS}


def test_a_constructor_has_few_parameters():
    """More parameters are combined in one frozen object."""
    long = {
        f"{name_of(path)}::{name}": n_parameters
        for path in modules()
        for name, node in functions(path)
        if name.endswith(".__init__")
        and (n_parameters := len(node.args.args) - 1 + len(node.args.kwonlyargs))
        > CONSTRUCTOR_PARAMETERS
    }
    assert not long


def test_exceptions_are_still_needed_and_have_reasons():
    assert set(EXCEPTIONS) <= {name for path in modules() for name, _ in long_ones(path)}
    assert all(len(reason.split()) >= 5 for reason in EXCEPTIONS.values())

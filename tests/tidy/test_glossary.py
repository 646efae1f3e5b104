"""Names follow docs/glossary.md: replaced words appear in no identifier."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.tidy.tree import ROOT, modules, name_of, parsed

pytestmark = pytest.mark.xdist_group("modules")  # parsed once

REPLACED = (
    *("lineage", "milestone", "milestones", "steward", "stewards", "stewardship", "stewarding"),
    *("pupil", "pupils", "incumbency", "deposed", "lesson", "lessons", "scribe", "turn_ms"),
    *("held", "forgotten", "ageing", "calendar", "residence", "journal", "arena", "guests"),
    *("strays", "scoring", "trusted", "trust", "party", "parties", "stake", "stakes", "trial"),
    *("trials", "contest", "reliability", "reliabilities", "credit", "credits", "mentions"),
)
"""Parts of identifiers, between `_` or capitals, that the glossary replaced by other words."""
PHRASES = (
    *("set aside", "come of age", "in office", "low-water", "nobody needs", "in vain", "goes on"),
    *("by the book", "as ever", "nobody asks", "anew", "made again", "looked at", "held against"),
)
"""Phrases that the glossary replaced, in docstrings and documents."""
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")})


@cache
def parts(name: str) -> list[str]:
    """
    >>> parts("_NewEngine_of")
    ['new', 'engine', 'of']
    """
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def may_use_a_replaced_word(path):
    text = f"{path.stem} {path.read_text('utf-8')}".lower()
    return any(word in text for word in REPLACED)


def test_no_identifier_of_the_package_uses_a_replaced_word():
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in filter(may_use_a_replaced_word, modules())
        for name in {path.stem, *identifiers(parsed(path))}
        if set(parts(name)) & set(REPLACED)
    }
    assert not found


def test_no_setting_series_or_log_event_uses_a_replaced_word():
    tables = [
        (ROOT / "docs" / page).read_text()
        for page in ("settings.md", "metrics.md", "operations.md")
    ]
    names = {name for text in tables for name in re.findall(r"^\| `([a-z_]+)`", text, re.MULTILINE)}
    assert len(names) > 100
    assert not {name for name in names if set(name.split("_")) & set(REPLACED)}


@cache
def texts() -> dict[str, str]:
    """Sources and pages by name, in lower case, with a blank for every run of blanks."""
    found = (*modules(), *PAGES)
    return {name_of(path): " ".join(path.read_text("utf-8").lower().split()) for path in found}


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_page_or_source_uses_a_replaced_phrase(phrase):
    found = [name for name, text in texts().items() if phrase in text]
    assert not [name for name in found if re.search(rf"\b{phrase}\b", texts()[name])]

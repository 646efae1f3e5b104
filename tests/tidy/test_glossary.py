"""Names keep to docs/glossary.md: words that it replaced appear in no identifier."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
SOURCES = sorted((ROOT / "evaluator").rglob("*.py"))
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")})


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


def test_no_identifier_of_the_package_uses_a_replaced_word():
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in {path.stem, *identifiers(ast.parse(path.read_text()))}
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


@pytest.mark.parametrize("phrase", PHRASES)
def test_no_page_or_source_uses_a_replaced_phrase(phrase):
    pattern = re.compile(rf"\b{phrase.replace(' ', chr(92) + 's+')}\b", re.IGNORECASE)
    found = [
        str(path.relative_to(ROOT))
        for path in (*SOURCES, *PAGES)
        if pattern.search(path.read_text())
    ]
    assert not found

"""The statements of the documents about the code are true."""

import ast
import re
from functools import cache

import pytest

import evaluator
from evaluator.config.settings import SPECS
from scripts.write_benchmarks import generated
from scripts.write_settings_page import PAGE, settings_page
from scripts.write_timeline import PICTURE, timeline
from tests.tidy.tree import ROOT, modules, name_of, pages, parsed, table_below

pytestmark = pytest.mark.xdist_group("modules")  # parsed once

LEVELS = {name: name for name in ("debug", "info", "warning", "error", "critical")}
LEVELS["exception"] = "error"
MAY_LOG = re.compile(rf"log(?:ger)?_*\W+(?:{'|'.join(LEVELS)})\b")
"""In the text of every module that calls a logger."""
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def test_the_page_of_settings_is_up_to_date():
    assert PAGE.read_text("utf-8") == settings_page(), "run: make generate"


def test_the_timeline_is_up_to_date():
    assert PICTURE.read_text("utf-8") == timeline(), "run: make generate"


def test_tables_and_pictures_of_benchmarks_are_up_to_date():
    for path, content in generated().items():
        assert path.read_text("utf-8") == content, "run: make generate"


def test_every_setting_is_documented():
    page = PAGE.read_text("utf-8")
    assert not [name for name in SPECS if f"| `{name}`" not in page]


@cache
def logged_events():
    """(event, level, module) of every call of a logger; the event is None if it is computed."""
    return list(logger_calls())


def logger_calls():
    for path in modules():
        if not MAY_LOG.search(path.read_text("utf-8")):
            continue
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in LEVELS:
                continue
            logger = ast.unparse(node.func.value).rsplit(".", maxsplit=1)[-1].strip("_")
            if logger not in {"log", "logger"}:
                continue
            first = node.args[0] if node.args else None
            literal = isinstance(first, ast.Constant) and isinstance(first.value, str)
            yield (first.value if literal else None), LEVELS[node.func.attr], name_of(path)


def test_log_events_are_string_literals():
    prose = [
        (event, module)
        for event, _, module in logged_events()
        if event is None or not re.fullmatch(r"[a-z][a-z0-9_]*", event)
    ]
    assert not prose


def test_exactly_the_log_events_are_documented():
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    documented = {
        (row[0].strip("`"), level.strip())
        for row in table_below(page, "## Log events")
        for level in row[1].split(",")
    }
    assert documented == {(event, level) for event, level, _ in logged_events()}


@cache
def anchors(page):
    """The anchors that the headings of a page give."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {word.strip().replace(" ", "-") for word in words}


def test_relative_links_have_targets():
    broken = []
    for page in pages():
        for target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append((name_of(page), target))
    assert not broken


def test_the_changelog_has_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## \[?([^\]\s]+)", changelog, re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert evaluator.__version__ in versions


def test_every_decision_is_listed_and_has_its_parts():
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text("utf-8")
    decisions = [path for path in folder.glob("*.md") if path.name != "README.md"]
    assert len(decisions) >= 3
    for path in decisions:
        assert f"({path.name})" in listed
        text = path.read_text("utf-8")
        for part in ("## Question", "## Decision", "## Why", "## Consequences"):
            assert part in text, (path.name, part)


def test_the_overview_of_the_repository_names_every_part():
    overview = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    parts = {path.relative_to(ROOT / "evaluator").parts[0] for path in modules()}
    missing = [
        part
        for part in parts - {"__init__.py", "__main__.py"}
        if not re.search(rf"\b{part.removesuffix('.py')}\b", overview)
    ]
    assert not missing


def test_every_target_of_make_has_a_help_text():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = set(re.findall(r"^\.PHONY: (\S+)$", makefile, re.MULTILINE))
    helped = set(re.findall(r"^([a-z-]+):.*## .", makefile, re.MULTILINE))
    assert phony == helped

"""Texts that no tracked file may contain: origins of packages, local paths, authors."""

import re
from functools import cache

import pytest

from tests.tidy.tree import files, name_of

pytestmark = pytest.mark.xdist_group("modules")  # read once

# A letter in brackets keeps a pattern from finding itself.
FORBIDDEN = {
    "the host of a package registry": (
        r"pyp[i]\.org|pythonhos[t]ed|npmj[s]\.|repo1?\.mave[n]|mave[n]\.org/maven2"
        r"|deb\.debia[n]\.org"
    ),
    "a path of one machine": r"(?<![\w.$}>)-])/(?:wor[k]|roo[t]|hom[e]|tm[p]|User[s])/",
    "an address with a password": r"://[^/\s:@]+:[^/\s@]+@",
    "a number in a tracker": r"\b[Ii](?i:ssue[s]?) #?\d",
    "a note to oneself": r"\b(?:TOD[O]|FIXM[E]|XX[X]|HAC[K])\b",
    "a document that is not in the tree": r"\b(?:DESIG[N]|INTERFAC[E]|HOTPAT[H]|HOUS[E])\b",
}

# The texts of a licence and of generated lists of hashes cannot be changed.
EXEMPT = {"LICENSE": ()}


@cache
def texts():
    """Names and contents of all files of text."""
    found = []
    for path in files():
        try:
            found.append((name_of(path), path.read_text("utf-8")))
        except UnicodeDecodeError:  # pictures and the like
            continue
    return found


def with_any_beginning(pattern):
    """Finds more than *pattern*, and sooner, as it begins with letters that can be looked for."""
    return re.compile(re.sub(r"^\\b|^\(\?<!\[.*?\]\)", "", pattern))


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_contains(what):
    pattern, quick = re.compile(FORBIDDEN[what]), with_any_beginning(FORBIDDEN[what])
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts()
        if name not in EXEMPT and quick.search(text) and pattern.search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("the host of a package registry", "https://pypi~.org/simple"),
        ("a path of one machine", "cd /wo~rk/main"),
        ("a path of one machine", 'Path("/t~mp/x")'),
        ("an address with a password", "http:/~/user:password@example.com"),
        ("a number in a tracker", "see issue ~3"),
        ("a note to oneself", "# TO~DO later"),
        ("a document that is not in the tree", "as in DES~IGN section 5"),
    ],
)
def test_the_patterns_find_their_examples(what, line):
    pattern = re.compile(FORBIDDEN[what])
    assert pattern.search(line.replace("~", ""))
    assert with_any_beginning(FORBIDDEN[what]).search(line.replace("~", ""))
    assert not pattern.search("an honest line in docs/work/notes.md")


def test_files_are_found():
    assert len(texts()) > 30


def test_text_files_end_with_one_line_end_and_have_no_trailing_blanks():
    untidy = [
        name
        for name, text in texts()
        if text
        and name not in EXEMPT
        and (not text.endswith("\n") or text.endswith("\n\n") or re.search(r"[ \t\r]\n", text))
    ]
    assert not untidy

"""The files of the project: one version, pinned dependencies, exceptions with reasons."""

import re
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import evaluator
from tests.tidy.tree import ROOT, modules, name_of

PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
PROJECT = tomllib.loads(PYPROJECT)


def lines_of_lock(name):
    """The requirements of a lock file, one text each, with their hashes."""
    text = (ROOT / "requirements" / name).read_text("utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    return text.replace("\\\n", " ").splitlines()


def pins(name):
    requirements = [Requirement(line.split("--hash")[0]) for line in lines_of_lock(name)]
    found = {}
    for requirement in requirements:
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        found.setdefault(canonicalize_name(requirement.name), set()).add(pin.version)
    return found


def test_the_installed_version_is_the_one_of_the_package():
    assert version("evaluator") == evaluator.__version__


@pytest.mark.parametrize("name", ["run.txt", "dev.txt", "compare.txt"])
def test_every_pinned_requirement_has_hashes(name):
    lines = lines_of_lock(name)
    assert len(lines) > 20
    assert [line for line in lines if "--hash=sha256:" not in line] == []


@pytest.mark.parametrize("name", ["run.txt", "dev.txt", "compare.txt"])
def test_a_lock_does_not_name_the_origin_of_packages(name):
    text = (ROOT / "requirements" / name).read_text("utf-8")
    assert not re.search(r"://|--\w*(?:index|links|host)", text)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("run.txt", PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"]),
        ("dev.txt", PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]),
        ("compare.txt", PROJECT["dependency-groups"]["compare"]),
    ],
)
def test_pinned_versions_meet_the_requirements(name, wanted):
    pinned = pins(name)
    for requirement in map(Requirement, wanted):
        versions = pinned[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(one) for one in versions), "run: make lock"


def test_the_tools_are_installed_with_the_same_dependency_versions():
    run, dev, compare = pins("run.txt"), pins("dev.txt"), pins("compare.txt")
    assert {name: dev.get(name) for name in run} == run
    shared = dev.keys() & compare.keys()
    assert {name: compare[name] for name in shared} == {name: dev[name] for name in shared}


def test_the_packages_of_formats_are_pinned_as_the_extras_require():
    pinned, extras = pins("formats.txt"), PROJECT["project"]["optional-dependencies"]
    of_formats = [extras[name] for name in ("avro", "protobuf")]
    wanted = [Requirement(one) for each in of_formats for one in each]
    assert pinned.keys() == {canonicalize_name(one.name) for one in wanted}
    for requirement in wanted:
        versions = pinned[canonicalize_name(requirement.name)]
        assert versions == pins("dev.txt")[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(one) for one in versions), "run: make lock"
    assert all("--hash=sha256:" in line for line in lines_of_lock("formats.txt"))


def test_the_sentence_model_is_pinned_separately_as_the_extra_requires():
    (line,) = lines_of_lock("embeddings.txt")
    assert "--hash=sha256:" in line
    ((name, versions),) = pins("embeddings.txt").items()
    (wanted,) = map(Requirement, PROJECT["project"]["optional-dependencies"]["embeddings"])
    assert canonicalize_name(wanted.name) == name
    assert all(wanted.specifier.contains(one) for one in versions), "run: make lock"
    assert [Requirement(one) for one in lines_of_lock("embeddings.in")] == [wanted]


def test_the_chart_library_is_pinned_by_exactly_one_hash():
    (line,) = lines_of_lock("page.txt")
    assert line.count("--hash=sha256:") == 1
    (wanted,) = map(Requirement, lines_of_lock("page.in"))
    (version_of,) = pins("page.txt")[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(version_of), "run: make lock"


@pytest.mark.parametrize("requirement", PROJECT["project"]["dependencies"])
def test_every_dependency_has_both_bounds(requirement):
    operators = {one.operator for one in Requirement(requirement).specifier}
    assert operators == {">=", "<"}


def test_every_exception_from_a_rule_has_a_reason():
    lint = PYPROJECT.split("[tool.ruff.lint]")[1].split("[tool.mypy]")[0]
    ignored = lint.split("ignore = [")[1]
    bare = [
        line.strip()
        for line in ignored.splitlines()
        if re.search(r'"[A-Z]+[0-9]*"', line) and not re.search(r"# \S+", line)
    ]
    assert not bare


def test_no_wait_of_a_test_has_its_own_timeout():
    short = re.compile(r"wait_for\(|\.timeout\(\d|\.result\(\d|started\.wait\(\d")
    found = [
        f"{name_of(module)}:{number}: use `finished` or `patience` of tests/waiting.py"
        for module in modules(ROOT / "tests")
        for number, line in enumerate(module.read_text("utf-8").splitlines(), 1)
        if short.search(line) and "re.compile" not in line
    ]
    assert found == []


def test_every_blanket_exception_in_the_code_has_a_reason():
    """`# noqa: RULE` and `# type: ignore[code]` in the package carry a reason after them."""
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "evaluator").rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if re.search(r"# (?:noqa|type: ignore)", line)
        and not re.search(r"# (?:noqa: [A-Z0-9, ]+|type: ignore\[[a-z, -]+\])\s+[#-] \S+ \S+", line)
    ]
    assert not bare

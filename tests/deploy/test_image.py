"""The text of the Dockerfile; `make image-check` executes it."""

import fnmatch
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.version import __version__
from scripts.recipe import NotUnderstood, stages_of
from tests.tidy.tree import ROOT

TEXT = (ROOT / "Dockerfile").read_text("utf-8")
BUILD, IMAGE = stages_of(TEXT)


@pytest.mark.slow(alone=False)
def test_hadolint_reports_no_problem():
    hadolint = Path(sys.executable).with_name("hadolint")
    found = subprocess.run(
        [hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_it_runs_as_an_unprivileged_numeric_user():
    user, group = IMAGE.user.split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_it_starts_and_checks_health_without_a_shell_and_stops_on_a_signal():
    assert IMAGE.entrypoint == ["/opt/evaluator/bin/evaluator"]
    assert IMAGE.health == [*IMAGE.entrypoint, "health"]
    assert IMAGE.stop_signal == "SIGTERM"


@pytest.mark.parametrize(
    "name", ["title", "description", "licenses", "version", "revision", "source"]
)
def test_the_image_has_the_standard_labels(name):
    _, image = stages_of(TEXT, {"VERSION": "9.9", "REVISION": "abc", "SOURCE": "https://s"})
    assert image.labels[f"org.opencontainers.image.{name}"]


@pytest.mark.parametrize(
    ("version", "code"), [(__version__, 0), ("", 0), ("0.0.9", 1)], ids=["same", "none", "other"]
)
def test_a_build_with_the_version_of_another_package_fails(version, code):
    _, _, program = BUILD.steps[-1].text.partition("/opt/evaluator/bin/python ")
    arguments = [sys.executable, *shlex.split(program.replace("${VERSION}", version))]
    assert subprocess.run(arguments, check=False).returncode == code


def test_the_target_builds_the_image_with_the_tag_and_the_label_of_this_version():
    command = ["make", "--dry-run", "image", "CONTAINER=podman"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    words = shlex.split(done.stdout.replace("\\\n", " "))
    assert words[:4] == ["podman", "build", "--tag", f"evaluator:{__version__}"]
    assert f"VERSION={__version__}" in words


def test_every_page_and_manifest_has_the_tag_of_this_version(subtests):
    places = [*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "docs").glob("*.md")]
    tag = re.compile(r"(?:\bevaluator:|newTag: |dist/evaluator-|\bVERSION=)(\d+\.\d+\.\d+)")
    found = {place: set(tag.findall(place.read_text("utf-8"))) for place in places}
    named = {place: versions for place, versions in found.items() if versions}
    assert len(named) >= 3
    for place, versions in named.items():
        with subtests.test(place=place.name):
            assert versions == {__version__}


@pytest.mark.parametrize("number", [0, 1])
def test_every_base_image_can_be_pinned_by_its_digest(number):
    pinned = {"BUILD_IMAGE": "a@sha256:1", "PYTHON_IMAGE": "b@sha256:2"}
    assert stages_of(TEXT, pinned)[number].base == list(pinned.values())[number]


def test_both_base_images_have_the_same_python():
    assert BUILD.base.replace(":3.11-", ":3.11-slim-") == IMAGE.base


def test_installed_packages_are_pinned_by_hashes():
    commands = [step.text for step in BUILD.steps if step.word == "RUN"]
    fetching = [part for text in commands for part in text.split("&&") if "/pip " in part]
    with_network = [part for part in fetching if "--no-index" not in part]
    assert len(with_network) == 2
    for part in with_network:
        assert "--require-hashes" in part
        assert "--only-binary=:all:" in part
    assert all("--no-isolation" in text for text in commands if "-m build" in text)


def test_only_the_environment_is_copied_from_the_build_stage():
    copied = [step for step in IMAGE.steps if step.word == "COPY"]
    assert [(step.flags, step.text) for step in copied] == [
        ({"from": "build"}, "/opt/evaluator /opt/evaluator")
    ]


def test_copied_files_exist_and_are_allowed_by_dockerignore():
    allowed = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    ]
    copied = {
        source
        for step in BUILD.steps
        if step.word == "COPY"
        for source in shlex.split(step.text)[:-1]
    }
    assert copied == set(allowed)
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.parametrize("excluded", ["decoder.so", "__pycache__", "codec.pyc", "uPlot.iife.js"])
def test_compiled_files_of_a_checkout_are_excluded(excluded):
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    names = [line.removeprefix("**/") for line in lines if line.startswith("**/")]
    assert any(fnmatch.fnmatch(excluded, name) for name in names)


# The reader of the recipe


def test_the_parser_substitutes_arguments_and_joins_lines():
    (stage,) = stages_of(
        "ARG BASE=a\nFROM ${BASE} AS one\n"
        "ENV A=1 B='2 3'\nWORKDIR /w\n"
        "RUN x \\\n# said between\n && y\n"
        "COPY --from=b f /g\n",
        {"BASE": "given"},
    )
    run, copy = stage.steps
    assert (stage.base, stage.name) == ("given", "one")
    assert re.sub(" +", " ", run.text) == "x && y"
    assert (run.workdir, dict(run.environment)) == ("/w", {"A": "1", "B": "2 3"})
    assert (copy.flags, copy.text) == ({"from": "b"}, "f /g")


@pytest.mark.parametrize(
    "line",
    ["ADD a b", "ONBUILD RUN x", "RUN <<EOF", 'SHELL ["x"]', "ENTRYPOINT evaluator run", "CMD x"],
)
def test_the_parser_rejects_unknown_instructions(line):
    with pytest.raises(NotUnderstood):
        stages_of(f"FROM a AS b\n{line}\n")

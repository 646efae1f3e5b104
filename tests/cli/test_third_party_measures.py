"""Measures of another package, really installed: found by name, checked, and reported."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evaluator.cli import main
from tests.repeats import IS_QUICK
from tests.replay.running import judgment, put, ranking

PACKAGE = Path(__file__).parent / "little_measures"
HALF = "share[0.5]"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the package as pip leaves it; in the quick set, its unpacked wheel."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(PACKAGE, tmp_path_factory.mktemp("source") / "little")
    if IS_QUICK:
        from hatchling.build import build_wheel

        with contextlib.chdir(source):
            wheel = build_wheel(str(source))
        shutil.unpack_archive(source / wheel, folder, "zip")
        return folder
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-index", "--no-build-isolation", "--no-deps", "--target", folder, source),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return folder


@pytest.fixture
def logs(tmp_path):
    put(tmp_path / "logs", "rankings.ndjson", [ranking("t", 1_000), ranking("u", 2_000)])
    return put(tmp_path / "logs", "judgments.ndjson", [judgment("t", 1_500), judgment("u", 2_500)])


def arguments(logs, measures, *settings):
    out = logs.parent / "out"
    options = [word for setting in settings for word in ("--set", setting)]
    return [
        "replay",
        f"--source=file://{logs}",
        f"--out={out}",
        f"--set=measures={measures}",
        *options,
    ]


@pytest.fixture
def replay(logs, capsys):
    """Runs `evaluator replay` in this process: code, stderr, results."""

    def run(measures, *settings):
        code = main(arguments(logs, measures, *settings))
        return code, capsys.readouterr().err, logs.parent / "out"

    return run


@pytest.fixture
def importable(installed, monkeypatch):
    """The package can be found, in this process."""
    monkeypatch.syspath_prepend(installed)
    yield
    for name in [name for name in sys.modules if name.startswith("little_measures")]:
        del sys.modules[name]


def document(folder, name):
    return json.loads((folder / name).read_text("utf-8"))


@pytest.mark.slow
def test_a_third_party_measure_is_computed_and_written_as_any_other(installed, logs):
    measures = f"mrr,last_relevant,last_relevant@1,{HALF}"
    done = subprocess.run(
        [sys.executable, "-m", "evaluator", *arguments(logs, measures)],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    out = logs.parent / "out"
    lines = (out / "evaluations.ndjson").read_text("utf-8").splitlines()
    first = json.loads(lines[0])["values"]["served"]
    assert first["last_relevant"] == first["mrr"] > 0
    assert first[HALF] == 0.25
    rows = {
        (row["kind"], row["measure"]): row["queries"]
        for row in document(out, "totals.json")["totals"]
    }
    assert rows["running", "last_relevant"] == rows["settled", HALF] == 2
    manifest = document(out, "manifest.json")
    assert manifest["settings"]["measures"] == ["mrr", "last_relevant", "last_relevant@1", HALF]
    assert manifest["settings"]["third_party_measures"] == dict.fromkeys(
        ("last_relevant", "last_relevant@1", HALF), "little-measures 1.2.3"
    )


def test_without_the_package_its_measures_are_unknown(replay):
    code, message, _ = replay("last_relevant")
    assert code == 2
    assert "'last_relevant' is not a measure" in message


@pytest.mark.slow
def test_an_unknown_measure_error_lists_installed_measures(replay, importable):
    code, message, _ = replay("nothing")
    assert code == 2
    assert ", last_relevant, last_relevant@k" in message
    assert "share[s]" in message


@pytest.mark.slow(alone=False)
def test_built_in_measures_cannot_be_overridden(replay, importable):
    code, message, out = replay("ndcg")
    assert (code, message) == (0, "")
    assert document(out, "manifest.json")["settings"]["third_party_measures"] == {}


@pytest.mark.parametrize(
    ("measures", "settings", "words"),
    [
        ("share[2]", (), "it takes s from 0 to 1"),
        ("no_kind", (), "no_kind of little-measures 1.2.3 is a function, not a MeasureKind"),
        ("no_module", (), "no_module of little-measures 1.2.3 cannot be loaded"),
        ("two", (), "two of little-measures 1.2.3 must give one value in [0, 1]"),
        ("raising", (), "raising of little-measures 1.2.3 failed: KeyError('nothing here')"),
        ("last_relevant", ("ties=average",), "not defined for last_relevant"),
        ("err@5", ("ties=average",), "not defined for err@5"),
    ],
)
def test_an_unusable_measure_is_refused_in_one_line(replay, importable, measures, settings, words):
    code, message, out = replay(measures, *settings)
    assert code == 2
    assert words in message
    assert message.count("\n") == 1
    assert not (out / "totals.json").exists()


def test_a_measure_that_averages_ties_can_be_used_with_ties_average(replay, importable):
    assert replay(HALF, "ties=average")[:2] == (0, "")

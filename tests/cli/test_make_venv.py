"""scripts/make-venv.sh: the interpreter that it chooses, and its refusals."""

import os
import subprocess
import sys
import tomllib

import pytest
from packaging.specifiers import SpecifierSet

from tests.repeats import first_quick
from tests.tidy.tree import ROOT

# Claims a version, runs `-c` code under this claim, and makes a folder instead of a venv.
INTERPRETER = """\
#!/bin/sh
case $1 in
    --version) echo "Python {major}.{minor}.0" ;;
    -m) mkdir "$4" ;;
    *) exec {python} -c 'import sys; sys.version_info = ({major}, {minor}, 0); exec(sys.argv[1])' \\
        "$2" ;;
esac
"""


@pytest.fixture
def make_venv(tmp_path):
    """Runs the script where *interpreters* (name to minor version) come first."""

    def run(interpreters, *wanted):
        for name, minor in interpreters.items():
            path = tmp_path / name
            path.write_text(INTERPRETER.format(python=sys.executable, major=3, minor=minor))
            path.chmod(0o755)
        return subprocess.run(
            [ROOT / "scripts" / "make-venv.sh", tmp_path / "venv", *wanted],
            env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize("minor", first_quick(11, 12, 13))
def test_a_suitable_python3_is_used(make_venv, tmp_path, minor):
    done = make_venv({"python3": minor, "python3.13": 13})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"making {tmp_path / 'venv'} with Python 3.{minor}.0\n"


@pytest.mark.parametrize("unsuitable", first_quick(10, 14, 15))
def test_the_newest_suitable_interpreter_is_used_if_python3_is_unsuitable(make_venv, unsuitable):
    others = {"python3.13": 13, "python3.12": 12, "python3.11": 11}
    assert "with Python 3.13.0" in make_venv({"python3": unsuitable, **others}).stdout


def test_an_interpreter_suitable_by_name_only_is_skipped(make_venv):
    done = make_venv({"python3": 14, "python3.13": 10, "python3.12": 12})
    assert "with Python 3.12.0" in done.stdout


@pytest.mark.parametrize("minor", [10, 14])
def test_an_explicitly_named_unsuitable_interpreter_is_refused(make_venv, tmp_path, minor):
    done = make_venv({"python3": 12, "mine": minor}, "mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == (
        f"make-venv: Python 3.11, 3.12 or 3.13 is needed; mine is: Python 3.{minor}.0."
    )
    assert not (tmp_path / "venv").exists()


def test_the_script_requires_the_python_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = SpecifierSet(project["requires-python"])
    assert [minor for minor in range(8, 20) if wanted.contains(f"3.{minor}.4")] == [11, 12, 13]

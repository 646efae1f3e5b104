"""`make wheel`: the content of the wheel, which also works without a compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

from hatch_build import platform_of
from tests.tidy.tree import ROOT

HAS_EXTENSION = "from evaluator.wire.native import library; print(library.BUILT is not None)"
RANKING = '{"schema_version":1,"trace_id":"t","node_id":"n","timestamp_ms":1000,'
RANKING += '"candidate_ids":["a","b"],"scores":[2,1]}\n'
JUDGMENT = (
    '{"schema_version":1,"trace_id":"t","node_id":"n","timestamp_ms":2000,"grades":{"b":1}}\n'
)


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind, source, directory, **environment):
    """The only file that `python -m build` makes of this kind."""
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", directory]
    run(*command, cwd=source, env={**os.environ, **environment})
    (made,) = directory.iterdir()
    return made


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The source archive of the repository, of which `python -m build` makes a wheel."""
    return build("--sdist", ROOT, tmp_path_factory.mktemp("archive"))


def wheel_of(archive, directory, **environment):
    shutil.unpack_archive(archive, directory, filter="data")
    (source,) = directory.iterdir()
    return build("--wheel", source, directory / "dist", **environment)


@pytest.fixture(scope="module")
def wheel(archive, tmp_path_factory):
    return wheel_of(archive, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def installed(tmp_path):
    """Installs a wheel into a new environment with the libraries of this one; its programs."""

    def install(wheel):
        environment = tmp_path / "environment"
        venv.create(environment)
        python = environment / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        run(*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", wheel)
        (packages,) = environment.glob("lib/*/site-packages")
        libraries = sysconfig.get_path("purelib")
        (packages / "libraries.pth").write_text(f"{libraries}\n")  # without their own .pth files
        return environment / "bin"

    return install


@pytest.mark.slow
def test_the_wheel_has_the_extension_and_the_tag_of_an_old_glibc(wheel):
    tags = wheel.stem.split("-")[2:]
    assert tags[:2] == ["py3", "none"]
    assert tags[2].startswith("manylinux_2_17_")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "evaluator/wire/native/native.so" in names
    assert {"evaluator/adapters/page/uPlot.iife.js", "evaluator/adapters/page/uPlot.min.css"} <= {
        *names
    }
    assert not [name for name in names if name.endswith((".c", ".h")) or "tests" in name]


@pytest.mark.slow
def test_the_extension_links_to_libc_only(wheel, tmp_path):
    if shutil.which("readelf") is None:
        pytest.skip("readelf of binutils reads what the library needs")
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("evaluator/wire/native/native.so", tmp_path)
    needed = [line for line in run("readelf", "-d", library).splitlines() if "(NEEDED)" in line]
    assert [line.partition("[")[2] for line in needed] == ["libc.so.6]"]


@pytest.mark.slow
def test_the_wheel_works_without_a_compiler(wheel, installed, tmp_path):
    programs = installed(wheel)
    there = {"cwd": tmp_path, "env": {"PATH": str(programs)}}
    assert run(programs / "python", "-c", HAS_EXTENSION, **there) == "True\n"
    where = run(programs / "python", "-c", "import evaluator; print(evaluator.__file__)", **there)
    assert where.startswith(str(programs.parent))
    assert run(programs / "evaluator", "--version", **there).startswith("evaluator ")
    (tmp_path / "rankings.ndjson").write_text(RANKING)
    (tmp_path / "judgments.ndjson").write_text(JUDGMENT)
    replay = ["replay", "--source", f"file://{tmp_path}", "--out", tmp_path / "results"]
    assert "1 queries settled (1 judged)" in run(programs / "evaluator", *replay, **there)


@pytest.mark.slow
def test_a_wheel_built_without_a_compiler_is_platform_independent_and_works(
    archive, installed, tmp_path
):
    wheel = wheel_of(archive, tmp_path / "source", CC="no-such-compiler")
    programs = installed(wheel)
    there = {"cwd": tmp_path, "env": {"PATH": str(programs)}}
    assert wheel.stem.endswith("-py3-none-any")
    assert run(programs / "python", "-c", HAS_EXTENSION, **there) == "False\n"


@pytest.mark.parametrize(
    ("versions", "tag"),
    [
        ("GLIBC_2.2.5 GLIBC_2.14", "manylinux_2_17_x86_64"),
        ("GLIBC_2.2.5 GLIBC_2.38 GLIBC_2.4", "manylinux_2_38_x86_64"),
        ("", "linux_x86_64"),  # another library of C
    ],
)
def test_the_tag_names_the_oldest_glibc_with_all_symbols(monkeypatch, tmp_path, versions, tag):
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-x86_64")
    library = tmp_path / "native.so"
    library.write_bytes(b"\x7fELF\0" + versions.replace(" ", "\0").encode())
    assert platform_of(library) == tag

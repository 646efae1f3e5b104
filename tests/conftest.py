"""Settings of all tests: their distribution over processes, and Hypothesis."""

import contextlib
import gc
import importlib
import itertools
import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from evaluator.adapters.linux import memory_limit_bytes
from tests import repeats
from tests.spread import ByFile, put_into_groups

MEMORY = Path("/dev/shm")
"""Place of temporary directories if it has room, so that stores and brokers need no disk."""
MEMORY_NEEDED = 6 * 2**30
TESTS = Path(__file__).parent
LONGEST_ID = 300
DIRECTORIES = itertools.count()
ALL_MARKED = (("kafka",), ("ecosystem",))
"""Folders whose tests all have the mark of that name."""


def _room_in_memory() -> float:
    """Bytes that files in memory may take; 0 if programs in them cannot be executed."""
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return 0
    [available] = re.findall(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text("utf-8"))
    limit = memory_limit_bytes() or float("inf")
    return min(shutil.disk_usage(MEMORY).free, 1024 * int(available), limit - MEMORY_NEEDED)


def pytest_configure(config: pytest.Config) -> None:
    """Sets the number of repetitions before the tests are imported."""
    repeats.IS_QUICK = "not slow" in config.option.markexpr
    # No deadline: a failure on a busy machine is no evidence against the code.
    settings.register_profile(
        "tests", deadline=None, print_blob=True, max_examples=repeats.examples(100)
    )
    settings.load_profile("tests")
    if MEMORY.is_dir() and _room_in_memory() > MEMORY_NEEDED:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shortens the ids of long texts, which would go to other processes, and to the environment."""
    if not isinstance(val, str | bytes) or len(val) <= LONGEST_ID:
        return None
    return f"{val[:40]!a} and more, {len(val)}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assigns the tests to processes, and sets those that start first."""
    put_into_groups(items)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips the import of folders whose tests are all left out."""
    return _is_left_out(collection_path, config) or None


def _is_left_out(path: Path, config: pytest.Config) -> bool:
    folder = path.relative_to(TESTS).parts[:1]
    return folder in ALL_MARKED and f"not {folder[0]}" in config.option.markexpr


def _import_from_another_place(config: pytest.Config) -> None:
    """Imports the tests, starting at a different file in each process.

    Each process reads the bytecode of the others, which saves half of the time. Errors of imports
    are reported at collection.
    """
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    count, number = config.workerinput["workercount"], config.workerinput["workerid"][2:]
    paths = [path for path in sorted(TESTS.rglob("test_*.py")) if not _is_left_out(path, config)]
    first = len(paths) * int(number) // count
    for path in paths[first:] + paths[:first]:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session):
    """Imported objects stay; repeated garbage collections over them would take seconds."""
    gc.disable()
    if hasattr(session.config, "workerinput"):
        _import_from_another_place(session.config)
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """An empty directory. That of pytest looks for an unused name in the list of all of them."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}_{next(DIRECTORIES)}", numbered=False)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Distributes the tests by `tests/spread.py` if there are several processes."""
    return ByFile(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Makes printed and logged text of a test safe to send to another process."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report

"""What all tests share: how they are spread over processes, and how Hypothesis searches."""

import pytest
from hypothesis import settings

from tests import repeats

# No deadline: a test that fails because the machine is busy says nothing about the code.
settings.register_profile("tests", deadline=None, print_blob=True)
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Tells the tests, before they are imported, how often to repeat themselves."""
    repeats.IS_QUICK = "not slow" in config.option.markexpr


ONE_PROCESS = ("kafka", "browser")
"""Markers of tests that share one thing that is dear to start: they run in one process."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the tests of one broker together, whatever process the others run in."""
    for item in items:
        for marker in ONE_PROCESS:
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.xdist_group(marker))
                break

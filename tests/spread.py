"""How tests are spread over processes: by file, what is slow one by one, what is dear together."""

import pytest
from xdist.scheduler import LoadGroupScheduling

ONE_PROCESS = ("kafka", "browser")
"""Markers of tests that share one thing that is dear to start: they run in one process."""

ALONE = "slow"
"""The group of tests that go to whichever process is free, each for itself."""

LONGEST_FIRST = ("kafka", "chaos", "alarm", "prometheus")
"""Groups that take a minute or more: the longest begins first, or the end would wait for it."""


class ByFile(LoadGroupScheduling):
    """What belongs to no group goes with its file: its fixtures are made once, and a message tells
    a process of many tests. The order is that of the collection."""

    def __init__(self, config, log=None):
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid):
        scope = super()._split_scope(nodeid)
        if scope == nodeid:
            return nodeid.split("::", 1)[0]
        return nodeid if scope == ALONE else scope


def group_of(item: pytest.Item) -> str | None:
    """The name of the group that a test is in, if any."""
    mark = item.get_closest_marker("xdist_group")
    return None if mark is None else mark.args[0]


def put_into_groups(items: list[pytest.Item]) -> None:
    """Gives every slow test, and every one that needs what is dear, its group; orders all."""
    for item in items:
        if group_of(item) is None:
            for marker in (*ONE_PROCESS, ALONE):
                if item.get_closest_marker(marker) is not None:
                    item.add_marker(pytest.mark.xdist_group(marker))
                    break
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    group = group_of(item)
    if group in LONGEST_FIRST:
        return LONGEST_FIRST.index(group)
    return len(LONGEST_FIRST) + (group is None)

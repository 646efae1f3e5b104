"""Distributes tests over processes: by file, long ones one by one, expensive ones together."""

import pytest
from xdist.scheduler import LoadGroupScheduling

KAFKA = ("kafka", "kafka from m on")
"""The groups of tests with a broker, which take about as long as each other."""

SECOND_HALF = "tests/kafka/test_m"
"""Files from this name on are in the second group."""

LONG = ("slow", "promtool", "kubectl")
"""Markers of tests that may take long: each goes to whichever process is free.

Those that share a fixture of their file go with the whole file, so that it is created once.
"""

LONGEST_FIRST = (*KAFKA, "minutes", "brokers")
"""Groups that take minutes, mostly of waiting: they start first, each in a process.

`brokers` are tests of brokers that are secured or become unavailable; `minutes` take minutes.
"""

ALONE = "alone"

BROKERS = {"_mortal": ("own_broker", "interruptible"), "_secured": ("secured",)}
"""Brokers of a process, with the fixtures of tests that use them. A start takes five seconds of CPU
time, so files that use the same one follow each other."""


class ByFile(LoadGroupScheduling):
    """Tests without a group go with their file: its fixtures are created once, and one message
    assigns many tests to a process. The order is that of the collection, below."""

    def __init__(self, config, log=None):
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid):
        scope = super()._split_scope(nodeid)
        if scope == nodeid:
            return nodeid.split("::", 1)[0]
        return nodeid if scope == ALONE else scope


def put_into_groups(items: list[pytest.Item]) -> None:
    """Gives every test its group, if it needs one, and puts long tests before the others.

    Of groups that take minutes, files that use the same broker follow each other.

    Of the others, files at the end of the alphabet are first, because they test whole workers.
    """
    files: dict[str, int] = {}
    groups: dict[pytest.Item, str | None] = {}
    brokers: dict[tuple[str, str | None], int] = {}
    for item in items:
        file, group = file_of(item), group_of(item)
        if group is None and (group := own_group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))
        files.setdefault(file, -len(files))
        groups[item] = group
        for number, broker in enumerate(BROKERS):
            if uses(item, broker):
                brokers.setdefault((file, group), number)

    def turn(item: pytest.Item) -> tuple[int, int, int]:
        file, group = file_of(item), groups[item]
        if group in LONGEST_FIRST:
            number = brokers.get((file, group), len(BROKERS))
            return LONGEST_FIRST.index(group), number, files[file]
        return len(LONGEST_FIRST) + (group is None), 0, files[file]

    items.sort(key=turn)


def own_group_of(item: pytest.Item) -> str | None:
    """The group of a test by its markers: of an expensive resource, or of long tests."""
    names = {mark.name for mark in item.iter_markers()}
    if "kafka" in names:
        return KAFKA[file_of(item) >= SECOND_HALF]
    if "browser" in names:
        return "browser"  # its tests share one
    if names.isdisjoint(LONG) or not is_alone(item):
        return None
    return file_of(item) if shares(item) else ALONE


def group_of(item: pytest.Item) -> str | None:
    """The name of the group of a test, if any."""
    mark = item.get_closest_marker("xdist_group")
    return None if mark is None else mark.args[0]


def uses(item: pytest.Item, broker: str) -> bool:
    """Whether a test uses this broker."""
    return not {*BROKERS[broker]}.isdisjoint(item.fixturenames)


def is_alone(item: pytest.Item) -> bool:
    """False for `slow(alone=False)`: a test of less than a second, which goes with its file."""
    return any(mark.kwargs.get("alone", True) for mark in item.iter_markers() if mark.name in LONG)


def shares(item: pytest.Item) -> bool:
    """Whether it needs a fixture that is created once for all tests of its file."""
    made = item._fixtureinfo.name2fixturedefs.values()
    return any(of.scope == "module" and of.baseid == file_of(item) for each in made for of in each)


def file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::", 1)[0]

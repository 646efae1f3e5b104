"""The state of alarms: a damaged record is refused, and never makes a later tick fail."""

import json
from functools import cache

import pytest

from evaluator.core.online.alarm_watch import AlarmWatch, WatchResult
from evaluator.wire.alarms.state import AlarmState, AlarmStateRefused
from tests.core.alarms.settled import N_TASKS, RULES, batches, settled_world
from tests.core.alarms.test_watch import watched

DAMAGE = (None, "x", -1, 1.5, [], {}, True, 10**80, [1])
WEEK_MS = 7 * 24 * 3_600_000

pytestmark = pytest.mark.slow


@cache
def stored():
    state = AlarmState("f", "w")
    world = settled_world(1, per_hour=8)
    return {of.key: of.value for of in state.written(watched(batches(world, 0)))}


def continued(records):
    """The results of a watch that continues from records; None if they are refused."""
    watch = AlarmWatch(RULES, n_tasks=N_TASKS)
    try:
        AlarmState("f", "w", dict(records)).load(watch)
    except AlarmStateRefused:
        return None
    result = WatchResult()
    if watch.tick_end_ms is not None:
        watch.close_until(watch.tick_end_ms + 3 * 3_600_000, result)
        for series in watch.series.values():
            series.tick(watch.tick_end_ms + WEEK_MS)  # makes a reference
    AlarmState("f", "w").written(watch)
    return watch.view()


def paths(value, path=()):
    yield path
    if isinstance(value, dict):
        for name in list(value)[:3] if path else value:
            yield from paths(value[name], (*path, name))
    elif isinstance(value, list):
        for place, each in enumerate(value[:10]):
            yield from paths(each, (*path, place))


def one_of_each():
    """A record of each kind, by its last label; of series, one with an alarm."""
    kinds = {}
    for key, value in stored().items():
        part = json.loads(key)[-1]
        if part != "series" or json.loads(value)["alarm"]:
            kinds["day" if part.isdigit() else part] = key
    return kinds


def test_a_written_state_is_continued():
    assert continued(stored()).series


@pytest.mark.parametrize("kind", ["alarms", "series", "reference", "day"])
def test_damaged_records_are_refused_or_harmless(kind):
    records = stored()
    key = one_of_each()[kind]
    n_refused = 0
    for path in list(paths(json.loads(records[key])))[1:60:2]:
        for damage in DAMAGE:
            document = inner = json.loads(records[key])
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = damage
            n_refused += continued({**records, key: json.dumps(document).encode()}) is None
    assert n_refused > 25


@pytest.mark.parametrize("part", ["mean", "profile", "variance", "spreads"])
def test_a_reference_that_no_tick_can_use_is_refused(part):
    key = one_of_each()["reference"]
    document = json.loads(stored()[key])
    reference = document["reference"]
    if part == "profile":
        del reference[0][-1]
    elif part == "spreads":
        reference[4][0] = -1.0
    else:
        reference[1 if part == "mean" else 2] = None if part == "mean" else 0.0
    assert continued({**stored(), key: json.dumps(document).encode()}) is None


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"\xff", b'{"format":2}'])
@pytest.mark.parametrize("kind", ["alarms", "series", "reference", "day"])
def test_a_value_of_another_format_is_refused(kind, value):
    assert continued({**stored(), one_of_each()[kind]: value}) is None
    assert continued({**stored(), b'["alarms","x"]': b"{}"}) is None

"""The watch of all series: the order of reading, restarts, and operator commands."""

from collections.abc import Iterable
from math import sqrt
from operator import attrgetter
from random import Random

import pytest
from msgspec.structs import replace

from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.alarms.sums import UnitSums
from evaluator.core.alarms.ticks import TICK_MS
from evaluator.core.online.alarm_watch import (
    MAX_LEFT_OUT,
    AlarmWatch,
    SeriesEvent,
    WatchResult,
)
from evaluator.core.online.carriers import context_of
from evaluator.core.online.views import MAX_NAMED
from evaluator.core.online.watched import COVERAGE, AlarmCommand, SeriesName, WatchRules
from evaluator.core.types.records import WatermarkRecord
from evaluator.wire.alarms.state import AlarmState
from tests.core.alarms.naive import Naive
from tests.core.alarms.settled import (
    DROP_HOUR,
    HOUR_MS,
    HOURS,
    N_TASKS,
    RULES,
    START_MS,
    batches,
    receive,
    settled_world,
)
from tests.core.alarms.worlds import ONE

SERVED = SeriesName("m", "prod", "served", "ndcg@10", "", "", "own")
PAIR = SERVED._replace(ranker="served-bm25", kind="pair")
OBJECTIVE = SERVED._replace(kind="constant")
GERMAN = SERVED._replace(segment="locale", level="de")
FRENCH = SERVED._replace(segment="locale", level="fr")
SHARE = SeriesName("m", "prod", "", COVERAGE, "", "", "own")

ONE_QUERY = UnitSums()
ONE_QUERY.add([1], [1], [1])

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world():
    return settled_world(1)


def watched(queries: Iterable, rules: WatchRules = RULES, commands=()) -> AlarmWatch:
    watch = AlarmWatch(rules, n_tasks=N_TASKS)
    watch.events = []
    for command in commands:
        watch.command(command)
    for batch in queries:
        result = WatchResult()
        receive(watch, batch, result, rules)
        watch.events += result.events
    return watch


@pytest.fixture(scope="module")
def whole(world):
    return watched(batches(world, 0))


@pytest.fixture(scope="module")
def small():
    """The same with half of the queries, for tests that compare two ways of watching it."""
    return settled_world(1, per_hour=8)


@pytest.fixture(scope="module")
def whole_small(small):
    return watched(batches(small, 0))


def test_a_drop_in_one_level_is_found_in_that_level(whole):
    begun = {event.series: event for event in whole.events if event.name == "on"}
    assert set(begun) == {SERVED, PAIR, OBJECTIVE, GERMAN}
    assert set(whole.series) == {*begun, FRENCH, SHARE}
    event = begun[SERVED]
    assert event.alarm.onset_ms == START_MS + DROP_HOUR * HOUR_MS
    [german] = event.alarm.carried_by
    assert german[:2] == ("locale", "de")
    assert german.share > 0.8
    assert german.change == pytest.approx(-0.3, abs=0.05)
    assert begun[GERMAN].alarm.carried_by == ()


def test_a_view_has_the_last_day_and_its_expected_values(world, whole):
    views = {view.series: view for view in whole.view().series}
    end_ms = whole.view().tick_end_ms
    first_ms = (-(-end_ms // HOUR_MS) - 24) * HOUR_MS
    judged = [q for q in world if first_ms <= q.event_time_ms < end_ms and q.grades]
    mean = sum(q.units["served"]["ndcg@10"] for q in judged) / (len(judged) * ONE)
    assert views[SERVED].day[0] == views[OBJECTIVE].day[0] == mean
    assert views[OBJECTIVE].day[1] == pytest.approx(0.55)
    assert views[SERVED].day[1] == pytest.approx(0.6, abs=0.01)
    assert views[SERVED].day[2] > views[SERVED].spreads[2]
    assert watched(batches(world[:500], 0)).view().series[0].day is None  # no reference yet


def test_an_alarm_has_the_judged_share_the_pair_and_the_reference_weeks(world, whole):
    begun = {event.series: event.alarm for event in whole.events if event.name == "on"}
    spreads = {view.series: view.spreads for view in whole.view().series}
    assert spreads[OBJECTIVE] == ()
    assert spreads[SERVED] == tuple(map(sqrt, whole.series[SERVED].reference.spreads))
    weeks_ms = (START_MS, START_MS + 168 * HOUR_MS)
    for name in (SERVED, OBJECTIVE):
        alarm = begun[name]
        first = -(-alarm.since_ms // HOUR_MS) - alarm.window_hours
        window = range(first * HOUR_MS, alarm.since_ms)
        settled = [query for query in world if query.event_time_ms in window]
        judged = [query for query in settled if query.grades]
        assert alarm.context.judged == len(judged) / len(settled)
        assert alarm.context.usual_judged == pytest.approx(0.9, abs=0.03)
        assert alarm.context.pair == "served-bm25"
        worse_ms = START_MS + DROP_HOUR * HOUR_MS
        n_worse = sum(q.segments["locale"] == "de" and q.event_time_ms >= worse_ms for q in judged)
        assert alarm.context.pair_change == pytest.approx(-0.3 * n_worse / len(judged))
        assert alarm.context.pair_se > 0
        assert alarm.context.weeks_ms == (weeks_ms if name is SERVED else ())
    assert begun[GERMAN].context == begun[PAIR].context._replace(judged=None, usual_judged=None)
    assert begun[PAIR].context.pair == ""
    assert begun[PAIR].context.judged
    assert begun[PAIR].context.weeks_ms == weeks_ms


def test_an_alarm_has_its_pair_where_the_share_of_judged_queries_is_not_watched(world, whole):
    begun = {event.series: event.alarm for event in whole.events if event.name == "on"}
    series = {name: of for name, of in whole.series.items() if name.measure != COVERAGE}
    assert len(series) < len(whole.series)
    context = context_of(SERVED, begun[SERVED], series, RULES)
    assert (context.pair, context.judged, context.usual_judged) == ("served-bm25", None, None)


def test_a_pair_names_the_levels_of_its_rankers_if_both_are_watched(small, whole):
    begun = {event.series: event for event in whole.events if event.name == "on"}
    assert begun[PAIR].alarm.carried_by == ()  # bm25 has no series
    both = replace(RULES, rankers=("served", "bm25"), objectives=())
    events = watched(batches(small, 0), both).events
    [german] = next(e for e in events if (e.name, e.series) == ("on", PAIR)).alarm.carried_by
    assert german[:2] == ("locale", "de")
    assert -0.3 < german.change < -0.15  # the window has hours before the drop too
    some = [
        query._replace(units={"served": query.units["served"]} if "served" in query.units else {})
        if number % 2 == 0
        else query
        for number, query in enumerate(small)
    ]
    events = watched(batches(some, 0), both).events
    assert next(e for e in events if (e.name, e.series) == ("on", PAIR)).alarm.carried_by == ()


def test_two_variants_name_the_levels_that_differ_in_the_same_hours():
    """The level changes by hour, and the share of the canary too."""
    queries = []
    for number, query in enumerate(settled_world(3, per_hour=40, hours=60, drop_hour=10**9)):
        hour = (query.event_time_ms - START_MS) // HOUR_MS
        is_canary = number % (7 if hour < 30 else 2) == 0
        is_worse = is_canary and hour >= 40 and query.segments["locale"] == "de"
        change = 0.1 * (hour % 2) - 0.2 * is_worse
        units = {
            ranker: {name: value + round(change * ONE) for name, value in of.items()}
            for ranker, of in query.units.items()
        }
        variant = "canary" if is_canary else "prod"
        queries.append(query._replace(units=units, variant=variant))
    rules = replace(RULES, pairs=(), objectives=(), variants=(("canary", "prod"),))
    events = watched(batches(queries, 0), rules).events
    [on] = [event for event in events if event.series.kind == "variants"]
    [german] = on.alarm.carried_by
    assert german[:2] == ("locale", "de")
    n_worse = (on.time_ms - START_MS) / HOUR_MS - 40
    share = min(1, n_worse / on.alarm.window_hours)
    assert german.change == pytest.approx(-0.2 * share, abs=0.04)
    without = replace(rules, alarms=AlarmRules(max_series=2))  # no series of levels
    events = watched(batches(queries, 0), without).events
    assert all(event.alarm.carried_by == () for event in events)


def test_events_are_in_the_order_of_time_and_series(whole):
    places = [(event.time_ms, event.series) for event in whole.events]
    assert places == sorted(places)


def test_all_series_equal_the_naive_implementation(world, whole):
    naive = {
        SERVED: Naive("own"),
        PAIR: Naive("pair"),
        OBJECTIVE: Naive("constant", constant=0.55),
        GERMAN: Naive("own"),
        SHARE: Naive("own"),
    }
    by_tick = {}
    for query in world:
        by_tick.setdefault(query.event_time_ms // TICK_MS, []).append(query)
    for tick in range(min(by_tick), max(by_tick)):
        for query in by_tick.get(tick, ()):
            at = query.event_time_ms, query.trace_id
            naive[SHARE].query(*at, (1 << 40) if query.grades else 0)
            if query.grades:
                served, bm25 = (query.units[name]["ndcg@10"] for name in ("served", "bm25"))
                naive[SERVED].query(*at, served)
                naive[OBJECTIVE].query(*at, served)
                naive[PAIR].query(*at, served - bm25)
                if query.segments["locale"] == "de":
                    naive[GERMAN].query(*at, served)
        for of in naive.values():
            of.tick((tick + 1) * TICK_MS)
    expected = [
        (name, end_ms, series) for series, of in naive.items() for name, end_ms, _ in of.events
    ]
    found = [(event.name, event.time_ms, event.series) for event in whole.events]
    assert sorted(found) == sorted(expected)
    for series, of in naive.items():
        for name, end_ms, alarm in of.events:
            [event] = [e for e in whole.events if e[:3] == (name, series, end_ms)]
            assert event.alarm.evidence == alarm["evidence"]
            assert event.alarm.drop == alarm["d"]


@pytest.mark.parametrize("seed", range(1, 3))
def test_events_do_not_depend_on_the_order_of_reading_or_on_restarts(small, whole_small, seed):
    random = Random(seed)
    state = AlarmState("rules", "workers")
    watch = AlarmWatch(RULES, n_tasks=N_TASKS)
    events: dict[tuple, SeriesEvent] = {}
    published: list[SeriesEvent] = []
    stream = list(batches(small, seed))
    place = 0
    read = 0
    while place < len(stream):
        result = WatchResult()
        receive(watch, stream[place], result)
        place += 1
        read += 1
        if result.n_ticks:
            published += result.events
            for record in state.written(watch):
                state.keep(record.key, record.value)
        if random.random() < 0.03 and read < 4 * len(stream):
            watch = AlarmWatch(RULES, n_tasks=N_TASKS)
            state = AlarmState("rules", "workers", dict(state.records))
            assert state.load(watch) == ""
            place = 0  # reads again; processed records are ignored
    events = {(event.name, event.series, event.time_ms): event for event in published}
    assert list(events.values()) == whole_small.events
    assert len(published) == len(events)


def test_events_of_commands_are_in_the_order_of_the_series(small, whole_small):
    at_ms = whole_small.events[0].time_ms
    command = AlarmCommand("c", "exclude", {}, 0, 1, at_ms)
    events = [
        e for e in watched(batches(small, 0), commands=[command]).events if e.time_ms == at_ms
    ]
    assert [e.series for e in events] == sorted(e.series for e in events)
    of_first = [e.name for e in events if e.series == whole_small.events[0].series]
    assert of_first == [whole_small.events[0].name, "exclude"]
    assert len(events) > 3


def test_series_beyond_the_limit_are_counted(world):
    rules = WatchRules(
        alarms=AlarmRules(max_series=2),
        measures=("ndcg@10",),
        levels=RULES.levels,
        maturity_ms=RULES.maturity_ms,
    )
    watch = watched([world[:200]], rules)
    assert len(watch.series) == 2
    assert watch.n_left_out == 2
    for n in range(2 * MAX_LEFT_OUT):
        watch.add_tick(watch.tick_end_ms, ("m", f"v{n}", 0), ONE_QUERY, WatchResult())
    assert watch.n_left_out == MAX_LEFT_OUT
    assert {GERMAN, SHARE} == {*watch.view().left_out[:2]}
    assert len(watch.view().left_out) == MAX_NAMED
    assert len(watch._of_query) == 2


def test_commands_name_their_tick_and_repeat_there(small, whole_small):
    [on] = [event for event in whole_small.events if event.name == "on" and event.series == SERVED]
    exclude = AlarmCommand("x1", "exclude", {"model": "m"}, on.time_ms, on.time_ms + 5 * HOUR_MS)
    accept = AlarmCommand("x2", "accept", {"ranker": "served"})
    watch = AlarmWatch(RULES, n_tasks=N_TASKS)
    events, done = [], []
    for batch in batches(small, 3, most=20):
        result = WatchResult()
        receive(watch, batch, result)
        events += result.events
        done += result.commands
        if any(event.series == SERVED for event in result.events if event.name == "on"):
            watch.command(accept)
            watch.command(exclude)
    assert {command.id for command in done} == {"x1", "x2"}
    assert all(command.applied_ms > on.time_ms - 1 for command in done)
    names = {(event.name, event.series) for event in events}
    assert ("accept", SERVED) in names
    assert ("accept", OBJECTIVE) not in names
    assert ("exclude", FRENCH) in names
    again = watched(batches(small, 4), commands=done)
    assert again.events == events
    assert [each.alarm for each in again.view().series] == [
        each.alarm for each in watch.view().series
    ]


def test_a_command_is_executed_once(world):
    command = AlarmCommand("x", "exclude", {}, START_MS, START_MS + HOUR_MS)
    watch = AlarmWatch(RULES, n_tasks=1)
    first = world[0]._replace(task=0, n=0)
    receive(watch, [first], WatchResult())
    for expected in (1, 0):
        watch.command(command)
        result = WatchResult()
        taken_ms = first.settled_time_ms + 2 * HOUR_MS * (2 - expected)
        watch.receive(0, [WatermarkRecord(taken_ms, 1)], result)
        assert len(result.commands) == expected


def test_the_coverage_explains_that_values_may_not_be_comparable():
    queries = []
    for query in settled_world(2):
        hour = (query.event_time_ms - START_MS) // HOUR_MS
        late = hour >= DROP_HOUR - 3 and hash_of(query) % 2
        queries.append(query._replace(grades={}, units={}) if late else query)
    watch = watched(batches(queries, 1))
    [share] = [e for e in watch.events if e.series == SHARE and e.name == "on"]
    [served] = [e for e in watch.events if e.series == SERVED and e.name == "on"]
    assert share.unverifiable == ""
    assert share.time_ms < served.time_ms
    assert served.unverifiable == COVERAGE


def test_silence_that_counts_as_a_grade_is_no_judgment():
    queries = [
        query._replace(silent=(query.event_time_ms - START_MS) // HOUR_MS >= DROP_HOUR)
        for query in settled_world(2, per_hour=8, drop_hour=HOURS)
    ]
    assert all(query.grades or not query.units for query in queries)
    [on] = [e for e in watched(batches(queries, 1)).events if e.name == "on"]
    assert on.series == SHARE
    assert on.alarm.observed < 0.7
    assert on.alarm.expected > 0.85


def hash_of(query):
    return sum(query.node_id.encode())


def test_a_task_that_restarts_at_n_0_counts_from_the_next_whole_hour(small):
    watch = AlarmWatch(RULES, n_tasks=N_TASKS)
    half = len(small) // 2
    receive(watch, sorted(small[:half], key=attrgetter("task")), WatchResult())
    hours = {name: of.days() for name, of in watch.series.items()}
    [position] = [index for index, query in enumerate(small[:half]) if query.task == 1][-1:]
    again = [query for query in small[:half] if query.task == 1]
    receive(watch, again, WatchResult())  # the same numbers at the same times: nothing new
    assert {name: of.days() for name, of in watch.series.items()} == hours
    restarted = [
        query._replace(n=n, settled_time_ms=query.settled_time_ms + 1)
        for n, query in enumerate(query for query in small[position - 50 :] if query.task == 1)
    ]
    open_ms = watch.tick_end_ms
    receive(watch, restarted, WatchResult())
    others = [query for query in small[half:] if query.task != 1]
    receive(watch, others, WatchResult())
    begin_ms = -(-open_ms // HOUR_MS) * HOUR_MS + HOUR_MS
    share = watch.series[SHARE].hourly
    empty = range(open_ms // HOUR_MS + (open_ms % HOUR_MS > 0), begin_ms // HOUR_MS)
    assert [share.of(hour).queries for hour in empty] == [0] * len(empty)
    hour = begin_ms // HOUR_MS
    mine = [query for query in small if query.event_time_ms // HOUR_MS == hour]
    assert share.of(hour).queries == len(mine)


def test_a_long_gap_without_queries_is_closed_at_once(world):
    first = world[0]._replace(task=0, n=0)
    years_ms = 40 * 365 * 24 * HOUR_MS
    later = first._replace(
        n=1,
        event_time_ms=first.event_time_ms + years_ms,
        settled_time_ms=first.settled_time_ms + years_ms,
    )
    watch = AlarmWatch(RULES, n_tasks=1)
    result = WatchResult()
    receive(watch, [first, later], result)
    assert result.n_ticks < 2.2 * 4 * 1_368
    assert watch.view().tick_end_ms == later.event_time_ms - later.event_time_ms % TICK_MS


def test_a_gap_of_many_thousand_years_is_closed_at_once_and_ends_alarms_after_a_week(small):
    watch = watched(batches(small, 0))
    on = {name for name, series in watch.series.items() if series.alarm is not None}
    assert on
    last_ms, result = small[-1].event_time_ms, WatchResult()
    watch.close_until(last_ms * 1_000, result)
    assert result.n_ticks < 2.2 * 4 * 1_368
    assert on == {event.series for event in result.events if event.name == "off"}
    hours = [(event.time_ms - last_ms) / HOUR_MS for event in result.events]
    assert 167 < max(hours) <= 169  # those of variants end after a day
    assert not any(series.alarm for series in watch.series.values())


def test_an_exclusion_holds_for_series_that_are_created_after_it(small):
    day = START_MS + DROP_HOUR * HOUR_MS
    before = AlarmCommand("c", "exclude", {}, day, day + 24 * HOUR_MS, START_MS - TICK_MS)
    queries = [query for query in small if query.event_time_ms < day + 24 * HOUR_MS]
    found = watched(batches(queries, 0), commands=[before])
    assert {event.name for event in found.events} == {"exclude"}
    assert {event.time_ms for event in found.events} == {START_MS + TICK_MS}
    assert len(found.events) < len(found.series)
    assert "on" in {event.name for event in watched(batches(queries, 0)).events}


def test_an_exclusion_holds_for_new_series_after_a_restart(world):
    command = AlarmCommand("c", "exclude", {"model": "m"}, START_MS, START_MS + 9 * HOUR_MS)
    state = AlarmState("f", "f")
    watch = AlarmWatch(RULES, n_tasks=1)
    receive(watch, [world[0]._replace(task=0, n=0)], WatchResult())
    watch.command(command)
    certain_ms = START_MS + HOUR_MS + RULES.maturity_ms
    watch.receive(0, [WatermarkRecord(certain_ms, 1)], WatchResult())
    for record in state.written(watch):
        state.keep(record.key, record.value)
    fresh = AlarmWatch(RULES, n_tasks=1)
    assert state.load(fresh) == ""
    later = START_MS + 2 * HOUR_MS
    fresh.add_tick(later, ("m", "canary", 0), ONE_QUERY, WatchResult())
    fresh.add_tick(later, ("other", "prod", 0), ONE_QUERY, WatchResult())
    hour = later // HOUR_MS
    assert hour in fresh.series[SERVED._replace(variant="canary")].exclusions
    assert hour not in fresh.series[SERVED._replace(model="other")].exclusions

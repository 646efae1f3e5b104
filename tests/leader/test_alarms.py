"""Alarms of the leader: killed, fenced and succeeded, it publishes the same events once each."""

import asyncio
import functools
import json
from random import Random

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemoryLeadership
from evaluator.core.online.watched import AlarmCommand, SeriesName
from evaluator.leader import Leader, loop
from evaluator.leader.alarms import MAX_GENERATIONS, LeaderAlarms
from evaluator.wire.alarms.records import command_record
from evaluator.wire.alarms.state import AlarmState, request_key
from evaluator.wire.outputs.settled import watched_of
from evaluator.wire.records import OutputRecord
from evaluator.wire.weights.leader_state import RecordWriter
from tests.core.alarms.settled import RULES, batches, settled_world
from tests.core.alarms.test_watch import SERVED, watched
from tests.core.learned import rules
from tests.leader.leadership import FINGERPRINT, LeaderHarness
from tests.leader.test_loop import KilledLeadership

pytestmark = pytest.mark.slow

WORLD = settled_world(1, per_hour=8)


@functools.cache
def events():
    """Of one watch that reads it all."""
    return [
        {"name": event.name, "series": event.series._asdict(), "time_ms": event.time_ms}
        for event in watched(batches(WORLD, 0)).events
    ]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(loop, "IDLE_MS", 5)


def leader(harness, leadership=None, *, fingerprint="watch", workers=FINGERPRINT, learns=False):
    learned = rules()
    return Leader(
        leadership or MemoryLeadership(harness.broker),
        measures=learned.offline_ranking.measures,
        record_writer=RecordWriter("rules", {"loss": "softmax"}, workers),
        rules=learned if learns else None,
        alarms=LeaderAlarms(RULES, AlarmState(fingerprint, workers)),
    )


def settle(harness, seed=0, *, world=WORLD, **how):
    for batch in batches(world, seed):
        harness.settle(batch, **how)


def events_in(harness):
    """Each event once, as for a reader of `alarms`: records may be repeated with the same bytes."""
    records = dict.fromkeys(record.value for record in harness.broker.leader.written["alarms"])
    found = [json.loads(value) for value in records if value]
    return [
        {"name": each["event"], "series": each["series"], "time_ms": each["time_ms"]}
        for each in found
    ]


async def until_watched(harness, one):
    until_ms = WORLD[-1].event_time_ms // 900_000 * 900_000
    await harness.until(lambda: one.view.alarms.tick_end_ms == until_ms)


@pytest.mark.parametrize("learns", [False, True])
async def test_events_are_those_of_the_watch_with_and_without_learning(learns):
    harness = LeaderHarness()
    settle(harness, 1)
    one = leader(harness, learns=learns)
    async with harness.working(one):
        await until_watched(harness, one)
        series = {each.series for each in one.view.alarms.series}
        assert SERVED in series
        assert one.view.is_leader
        on = [each.alarm for each in one.view.alarms.series if each.alarm]
    assert any(alarm.carried_by for alarm in on)
    assert events_in(harness) == events()
    successor = leader(harness, learns=learns)
    async with harness.working(successor):
        await until_watched(harness, successor)
        assert on == [each.alarm for each in successor.view.alarms.series if each.alarm]
    assert [record.key for record in harness.broker.leader.written["alarms"]] == [
        json.dumps(list(SeriesName(**event["series"]))).encode() for event in events()
    ]


@pytest.mark.parametrize("part", range(2))
async def test_a_repeatedly_killed_leader_publishes_each_event_once(part, monkeypatch):
    random = Random(part)
    monkeypatch.setattr(loop, "MAX_READ_RECORDS", random.choice((40, 200, 900)))
    harness = LeaderHarness()
    settle(harness, part)
    for _ in range(random.randrange(2, 6)):
        with pytest.raises(asyncio.CancelledError):
            await leader(harness, KilledLeadership(harness.broker, random.randrange(60))).run()
    last = leader(harness)
    async with harness.working(last):
        await until_watched(harness, last)
    assert events_in(harness) == events()
    assert len(harness.broker.leader.written["alarms"]) == len(events())


async def test_a_command_is_executed_once_and_written_with_its_tick():
    harness = LeaderHarness()
    half = len(WORLD) // 2
    harness.settle(WORLD[:half])
    command = AlarmCommand("c-1", "exclude", {"measure": "coverage"}, 0, 3_600_000)
    request = OutputRecord(request_key("c-1"), command_record(command).value)
    harness.weights.append(request)
    harness.weights.append(OutputRecord(request_key("c-2"), b"{"))
    one = leader(harness)
    with capture_logs() as logs:
        async with harness.working(one):
            await harness.until(lambda: harness.broker.leader.written["alarm-commands"])
    assert [line["event"] for line in logs].count("command_unreadable") == 1
    [done] = [json.loads(r.value) for r in harness.broker.leader.written["alarm-commands"]]
    assert done["id"] == "c-1"
    assert done["applied_ms"] % 900_000 == 0
    assert OutputRecord(request_key("c-1"), b"") in harness.weights
    [event] = events_in(harness)
    assert (event["name"], event["series"]["measure"]) == ("exclude", "coverage")
    harness.settle([*WORLD[half:], *harness.end(WORLD)])
    two = leader(harness)
    async with harness.working(two):
        await until_watched(harness, two)
    assert len(harness.broker.leader.written["alarm-commands"]) == 1


async def test_changed_rules_start_without_history_and_delete_the_former_state():
    harness = LeaderHarness()
    settle(harness)
    one = leader(harness)
    async with harness.working(one):
        await until_watched(harness, one)
    two = leader(harness, fingerprint="others")
    with capture_logs() as logs:
        async with harness.working(two):
            await until_watched(harness, two)
    [begun] = [line for line in logs if line["event"] == "alarms_begin_again"]
    assert begun["reason"] == "its settings have changed"
    written = [record.value for record in harness.broker.leader.written["alarms"]]
    first = written.index(b"")  # else an alarm that the new rules do not have would stay on
    keys = {record.key for record in harness.broker.leader.written["alarms"][:first]}
    cleared = {r.key for r in harness.broker.leader.written["alarms"] if not r.value}
    assert keys <= cleared
    assert events_in(harness) == events()  # the same, of the whole log again


async def test_other_workers_with_the_same_meaning_keep_the_history():
    harness = LeaderHarness()
    settle(harness)
    one = leader(harness)
    async with harness.working(one):
        await until_watched(harness, one)
    settle(harness, fingerprint="new workers")
    two = leader(harness, workers="new workers")
    async with harness.working(two):
        await harness.until(lambda: two.view.counts[("records", "query")] == len(WORLD))
        view = two.view.alarms
        assert view.tick_end_ms == one.view.alarms.tick_end_ms or view.tick_end_ms is not None
        weeks = {each.series: len(each.weeks) for each in view.series}
    assert weeks[SERVED] == 2
    assert len(events_in(harness)) == len(events())


async def test_an_unreadable_state_is_deleted():
    harness = LeaderHarness()
    harness.weights.append(OutputRecord(b'["alarms"]', b'{"fingerprint": "watch"}'))
    settle(harness)
    one = leader(harness)
    with capture_logs() as logs:
        async with harness.working(one):
            await until_watched(harness, one)
    assert any(line["event"] == "alarms_begin_again" for line in logs)
    assert events_in(harness) == events()


async def test_a_new_generation_of_settled_counts_from_the_next_whole_hour():
    harness = LeaderHarness()
    settle(harness)
    one = leader(harness)
    with capture_logs() as logs:
        async with harness.working(one):
            await until_watched(harness, one)
            settle(harness, generation="again")
            await harness.until(lambda: one.view.counts["records", "query"] == 2 * len(WORLD))
    begun = [line for line in logs if line["event"] == "alarms_generation_begins"]
    assert {line["task"] for line in begun} == {0, 1, 2}
    assert events_in(harness) == events()  # nothing is counted twice


BEGIN = settled_world(1, hours=30)


def later_queries(task, n_queries=50):
    """Queries of a task a day after those of `BEGIN`, numbered from 0."""
    day_ms = 86_400_000
    last = BEGIN[-1]
    return [
        last._replace(
            task=task,
            n=n,
            trace_id=f"later-{n}",
            event_time_ms=last.event_time_ms + day_ms + n,
            settled_time_ms=last.settled_time_ms + day_ms + n,
        )
        for n in range(n_queries)
    ]


async def learned(harness):
    """Until a leader without alarms has learned from all that has settled; its positions."""
    one = LeaderHarness.leader(harness)
    async with harness.working(one):
        await harness.until(lambda: one.view.counts["records", "query"] >= len(BEGIN))
    return harness.states[-1]["positions"]


async def state_of_alarms(harness, *, learns):
    """The last records of alarms in `weights` of a leader that reads task by task."""
    one = leader(harness, learns=learns)
    until_ms = BEGIN[-1].event_time_ms // 900_000 * 900_000
    async with harness.working(one):
        await harness.until(lambda: one.view.alarms.tick_end_ms == until_ms)
    records = {record.key: record.value for record in harness.weights}
    return {key: value for key, value in records.items() if key.startswith(b'["alarms"')}


@pytest.mark.parametrize("what", ["gap", "new generation", "left generation"])
async def test_alarms_behind_the_learner_read_the_records_that_they_read_without_it(
    what, monkeypatch
):
    monkeypatch.setattr(loop, "MAX_READ_RECORDS", 50)  # of the first task first
    harness, alone = LeaderHarness(), LeaderHarness()
    for each in (harness, alone):
        settle(each, world=BEGIN)
    positions = await learned(harness)
    assert min(positions.values()) > len(BEGIN) // 4  # the learner needs nothing before them
    n = sum(query.task == 0 for query in BEGIN)
    for each in (harness, alone):
        if what == "gap":
            each.settle([query._replace(n=n + 7 + query.n) for query in later_queries(0)])
        elif what == "new generation":
            each.settle(later_queries(0), generation="h")
        else:
            settle(each, world=BEGIN, generation="h")
    if what == "left generation":
        await learned(harness)
    found = await state_of_alarms(harness, learns=True)
    assert len(found) > 10
    assert found == await state_of_alarms(alone, learns=False)


def watched_from(queries, first=0):
    numbered = [query._replace(offset=first + at) for at, query in enumerate(queries)]
    offsets = [query.offset for query in numbered]
    return watched_of(numbered, offsets, RULES.columns())


def test_any_batches_of_records_have_the_same_state():
    mine = [query._replace(task=0, n=n) for n, query in enumerate(WORLD[:600])]
    states = []
    for most in (1, 7, len(mine)):
        alarms = LeaderAlarms(RULES, AlarmState("watch", FINGERPRINT))
        alarms.begin(1)
        for first in range(0, len(mine), most):
            alarms.receive(0, "g", watched_from(mine[first : first + most], first))
        states.append((alarms.watch.state(), alarms.view()))
    assert states[0] == states[1] == states[2]


def test_records_before_the_position_begin_no_generation():
    """Learning may have to read them, and a state has only the last generations."""
    n_generations = 2 * MAX_GENERATIONS
    per = len(WORLD[:800]) // n_generations
    reads = []
    for number in range(n_generations):
        part = WORLD[number * per : (number + 1) * per]
        queries = [query._replace(task=0, n=n) for n, query in enumerate(part)]
        reads += [
            (f"g{number}", watched_from([query], at))
            for at, query in enumerate(queries, len(reads))
        ]
    state = AlarmState("watch", FINGERPRINT)
    alarms = LeaderAlarms(RULES, state)
    alarms.begin(1)
    for _, record in (each for read in reads for each in alarms.receive(0, *read)):
        if record.key.startswith(b'["alarms"'):
            state.keep(record.key, record.value)
    again = LeaderAlarms(RULES, AlarmState("watch", FINGERPRINT, dict(state.records)))
    again.begin(1)
    (position,) = again.positions.values()
    assert 0 < position < len(reads)
    with capture_logs() as logs:
        for read in reads:
            again.receive(0, *read)
    begun = [line["generation"] for line in logs if line["event"] == "alarms_generation_begins"]
    last = int(reads[position - 1][0].removeprefix("g"))
    assert begun == [f"g{number}" for number in range(last + 1, n_generations)]

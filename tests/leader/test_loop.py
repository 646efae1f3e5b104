"""The loop of the leader in memory: killed, paused, misled and fenced, it publishes the same."""

import asyncio
import json
from collections import Counter
from random import Random

import pytest
from structlog.testing import capture_logs

from evaluator import waiting
from evaluator.adapters.memory import MemoryLeadership
from evaluator.core.learning.transforms import Transform
from evaluator.core.online.events import Command
from evaluator.core.types.records import WatermarkRecord
from evaluator.leader import loop
from evaluator.ports import SourceUnusable
from evaluator.wire.canonical import checksum_of, encode_document
from evaluator.wire.records import FINGERPRINT_HEADER, OutputRecord
from evaluator.wire.weights.leader_state import (
    STATE_KEY,
    command_key,
    command_record,
    emptied_state,
    read_state,
)
from tests.adapters.synthetic import FixedViews, learned
from tests.adapters.test_http import run_with_client
from tests.core.learned import MATURITY_MS, N_TASKS, NAMES, parts, rules, settled_query, world
from tests.faulty_broker import FaultyBroker
from tests.leader.leadership import FINGERPRINT, LeaderHarness, settled_value
from tests.repeats import first_quick, repeated, sized
from tests.simulation.clock import simulated_time

WORLD = world(3, sized(600, quick=400))


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    """Leaders without records to read poll again soon."""
    monkeypatch.setattr(loop, "IDLE_MS", 5)


@pytest.fixture(scope="module")
def whole():
    """The records of a leader without faults."""

    async def work():
        harness = LeaderHarness()
        harness.settle_all(WORLD)
        leader = harness.leader()
        async with harness.working(leader):
            await harness.until_taken(leader, len(WORLD))
        return harness

    return asyncio.run(work())


def test_the_world_has_promotions_and_several_states(whole):
    statuses = [record["status"] for record in whole.log]
    assert statuses[:2] == ["challenger", "promoted"]
    assert len(whole.states) >= 5


@pytest.mark.slow(alone=False)
async def test_the_order_of_reading_does_not_change_the_bytes(whole):
    for seed in range(1, 4):
        harness = LeaderHarness()
        leader = harness.leader()
        async with harness.working(leader):
            harness.settle_all(WORLD, seed)
            await harness.until_taken(leader, len(WORLD))
        assert harness.broker.leader.written == whole.broker.leader.written


class KilledLeadership(MemoryLeadership):
    """A leadership whose leader is killed at some call, before or after its effect."""

    def __init__(self, broker: FaultyBroker, calls_left: int) -> None:
        super().__init__(broker)
        self._calls_left = calls_left

    def _count(self) -> None:
        self._calls_left -= 1
        if self._calls_left < 0:
            raise asyncio.CancelledError

    async def begin_epoch(self):
        self._count()
        found = await super().begin_epoch()
        self._count()
        return found

    async def read(self, tasks, *, max_records, timeout_ms):
        self._count()
        found = await super().read(tasks, max_records=max_records, timeout_ms=timeout_ms)
        self._count()
        return found

    async def publish(self, records):
        self._count()
        await super().publish(records)
        self._count()


@pytest.mark.parametrize("part", repeated(8, quick=1))
async def test_repeatedly_killed_leaders_publish_the_same_records_once(part, whole, monkeypatch):
    random = Random(part)
    monkeypatch.setattr(loop, "MAX_READ_RECORDS", random.choice((7, 40, 500)))
    monkeypatch.setattr(loop, "IDLE_MS", 1)
    harness = LeaderHarness()
    harness.settle_all(WORLD)
    for _ in range(random.randrange(1, 6)):
        with pytest.raises(asyncio.CancelledError):
            await harness.leader(KilledLeadership(harness.broker, random.randrange(40))).run()
    last = harness.leader()
    async with harness.working(last):
        await harness.until(lambda: len(harness.weights) == len(whole.weights))
    assert harness.broker.leader.written == whole.broker.leader.written


@pytest.mark.slow(alone=False)
async def test_records_repeated_by_workers_do_not_change_the_bytes(whole):
    random = Random(5)
    harness = LeaderHarness()
    for part in parts(WORLD):
        place = 0
        while place < len(part):
            end = place + random.choice((1, 5, 30))
            harness.settle(part[max(0, place - random.choice((0, 3, 50))) : end])
            place = end
    leader = harness.leader()
    async with harness.working(leader):
        await harness.until(lambda: len(harness.weights) == len(whole.weights))
        state = harness.states[-1]
    assert harness.log == whole.log
    again = harness.leader()  # continues behind processed records, despite repeats
    queries, watermark_records = much_later(state)
    async with harness.working(again):
        harness.settle([*WORLD[-50:], *queries, *watermark_records])
        await harness.until(lambda: harness.states[-1] != state)
        assert again.view.counts["gaps",] == 0
    assert harness.states[-1]["state"]["models"][0]["epoch"] == 0


async def test_one_process_is_leader_and_the_others_follow(whole):
    harness = LeaderHarness()
    leaders = [harness.leader() for _ in range(3)]
    async with (
        harness.working(leaders[0]),
        harness.working(leaders[1]),
        harness.working(leaders[2]),
    ):
        await harness.until(lambda: any(each.view.is_leader for each in leaders))
        harness.settle_all(WORLD)
        await harness.until(lambda: len(harness.weights) == len(whole.weights))
        await harness.until(lambda: all(each.live for each in leaders))
        assert [each.view.is_leader for each in leaders].count(True) == 1
        assert {each.live["m"] for each in leaders} == {
            [each for each in whole.weights if each.key == b'"m"'][-1].value
        }


@pytest.mark.slow(alone=False)
async def test_a_fenced_leader_publishes_nothing_and_may_be_elected_again(whole):
    harness = LeaderHarness()
    leadership = MemoryLeadership(harness.broker)
    leader = harness.leader(leadership)
    half = len(WORLD) // 2
    async with harness.working(leader):
        await harness.until(lambda: leader.view.is_leader)
        harness.broker.leader.leader_epoch += 1  # another leader has entered and left
        with capture_logs() as logs:
            harness.settle_all(WORLD[:half])
            harness.settle_all(WORLD)
            await harness.until(lambda: len(harness.weights) == len(whole.weights))
        assert "leader_fenced" in {line["event"] for line in logs}
        assert leader.view.counts["leader_epochs",] == 2
    assert harness.log == whole.log


@pytest.mark.slow(alone=False)
async def test_counts_of_successive_leaders_add_up_to_the_sums_of_the_state(whole):
    harness, counted = LeaderHarness(), Counter()
    for end, n_weights in ((len(WORLD) // 2, 2), (len(WORLD), len(whole.weights))):
        leader = harness.leader()
        async with harness.working(leader):
            harness.settle_all(WORLD[:end])
            await harness.until(lambda n_weights=n_weights: len(harness.weights) >= n_weights)
        counted.update(leader.view.counts)
    assert counted["leader_epochs",] == 2
    for ranker, sums in harness.states[-1]["state"]["models"][0]["sums"].items():
        for measure, figures in sums.items():
            path = ("values", "m", ranker, measure)
            assert [counted[*path, "queries"], counted[*path, "sum_units"]] == figures


async def test_an_unavailable_broker_only_delays_the_leader(whole, monkeypatch):
    monkeypatch.setattr(waiting, "FIRST_BACKOFF_SECONDS", 0.001)
    harness = LeaderHarness()
    harness.broker.disconnect()
    leader = harness.leader()
    async with harness.working(leader):
        await asyncio.sleep(0.01)
        harness.broker.reconnect()
        for place, batch in enumerate(parts(WORLD)):
            harness.broker.disconnect()
            harness.settle(batch)
            await asyncio.sleep(0.005 * place)
            harness.broker.reconnect()
        await harness.until(lambda: len(harness.weights) == len(whole.weights))
    assert harness.log == whole.log


def test_the_pauses_of_a_leader_double_until_the_broker_answers():
    harness = LeaderHarness()

    async def outages():
        async with harness.working(harness.leader()):
            for seconds in (3.0, 0.5):
                harness.broker.disconnect()
                await asyncio.sleep(seconds)
                harness.broker.reconnect()
                await asyncio.sleep(10.0)

    with capture_logs() as logs, simulated_time(int) as time:
        time.run_until_complete(outages())
    waited = [line["seconds"] for line in logs if line["event"] == "leader_waits"]
    assert waited == [0.25, 0.5, 1.0, 2.0, 0.25, 0.5]


@pytest.mark.parametrize(
    ("limit", "most"),
    first_quick(("MAX_BUFFERED", 30), ("MAX_BUFFERED_BYTES", 30 * len(settled_value(WORLD[0])))),
)
async def test_a_task_without_records_is_reported_and_limits_the_reading_of_others(
    monkeypatch, limit, most
):
    monkeypatch.setattr(loop, limit, most)
    monkeypatch.setattr(loop, "MAX_READ_RECORDS", 10)
    monkeypatch.setattr(loop, "IDLE_MS", 5)
    harness = LeaderHarness()
    silent, *others = parts(WORLD)
    for part in others:
        harness.settle(part)
    leader = harness.leader()
    async with harness.working(leader):
        await harness.until(lambda: leader.view.n_buffered >= 28)
        await harness.until(lambda: leader.view.awaited == (0,))
        assert leader.view.n_buffered < 50
        harness.settle(silent)
        await harness.until_taken(leader, len(WORLD))
        await harness.until(lambda: not leader.view.n_buffered)


# --- unusable states ------------------------------------------------------------------------------


async def promoted(harness):
    """Fills the topics with live weights and a state."""
    harness.settle_all(WORLD)
    leader = harness.leader()
    async with harness.working(leader):
        await harness.until_taken(leader, len(WORLD))


def much_later(state, *, gap_of: int | None = None, n_queries: int = 60):
    """Queries a day after a state, numbered on from it; of one task some are missing before."""
    next_n = [state["state"]["taken"][str(task)][0] for task in range(N_TASKS)]
    for query in WORLD:
        next_n[query.task] = max(next_n[query.task], query.n + 1)
    if gap_of is not None:
        next_n[gap_of] += 5
    ms = WORLD[-1].event_time_ms + 86_400_000
    made = []
    for i in range(n_queries):
        task = i % N_TASKS
        at = {"event_time_ms": ms + 10_000 * i, "settled_time_ms": ms + MATURITY_MS + 10_000 * i}
        made.append(settled_query(i, Random(i), **at, task=task, n=next_n[task]))
        next_n[task] += 1
    return made, [(task, WatermarkRecord(ms * 2, n)) for task, n in enumerate(next_n)]


@pytest.mark.slow(alone=False)
async def test_a_gap_keeps_live_weights_and_begins_a_new_epoch():
    harness = LeaderHarness()
    await promoted(harness)
    live, log, state = harness.weights, harness.log, harness.states[-1]
    queries, watermark_records = much_later(state, gap_of=1)
    leader = harness.leader()
    async with harness.working(leader):
        harness.settle([*queries, *watermark_records])
        await harness.until(lambda: harness.states[-1] != state)
        assert leader.view.counts["gaps",] == 1
    [model] = harness.states[-1]["state"]["models"]
    [in_force] = [json.loads(each.value) for each in live if each.key == b'"m"']
    assert model["epoch"] == 1
    assert model["champions"][0][2] == in_force["weights"]
    assert harness.log[: len(log)] == log


@pytest.mark.slow(alone=False)
async def test_a_new_generation_begins_at_n_0_with_a_new_epoch_and_no_gap():
    """Its queries have settled at any time, also before those of the old inputs."""
    harness = LeaderHarness()
    await promoted(harness)
    log, state = harness.log, harness.states[-1]
    leader = harness.leader()
    new_queries = world(9, 200)
    with capture_logs() as logs:
        async with harness.working(leader):
            harness.settle_all(new_queries, generation="h")
            harness.settle(harness.end(new_queries), generation="h")
            await harness.until(lambda: in_generation(harness, "h"))
            assert leader.view.counts["gaps",] == 0
    began = [line for line in logs if line["event"] == "settled_generation_begins"]
    assert sorted(line["task"] for line in began) == list(range(N_TASKS))
    last = harness.states[-1]
    assert last["generations"] == {str(task): ["g", "h"] for task in range(N_TASKS)}
    assert last["state"]["models"][0]["epoch"] > state["state"]["models"][0]["epoch"]
    assert harness.log[: len(log)] == log


async def test_successors_also_ignore_a_former_generation():
    """A worker that has not noticed yet continues the old generation for a while."""
    harness = LeaderHarness()
    harness.settle_all(WORLD)
    new_queries = world(9, 200)
    harness.settle_all(new_queries, generation="h")
    harness.settle(harness.end(new_queries), generation="h")
    async with harness.working(harness.leader()):
        await harness.until(lambda: in_generation(harness, "h"))
    taken = harness.states[-1]["state"]["taken"]
    assert max(n for n, _ in taken.values()) < len(new_queries)
    harness.settle(world(10, 100))
    successor = harness.leader()
    async with harness.working(successor):
        await harness.until(lambda: successor.view.counts["records", "foreign"] >= 100)
        assert successor.view.counts["gaps",] == 0
    assert in_generation(harness, "h")
    assert max(n for n, _ in harness.states[-1]["state"]["taken"].values()) < len(new_queries)


def in_generation(harness, name):
    """Whether the last state has queries of all tasks, of that generation alone."""
    state = harness.states[-1] if harness.states else {}
    read = state.get("generations", {}).values()
    tasks = {str(task) for task in range(N_TASKS)}
    return {names[-1] for names in read} == {name} and state["state"]["taken"].keys() == tasks


async def test_foreign_queries_are_ignored_and_changed_settings_begin_an_epoch(whole):
    harness = LeaderHarness()
    harness.settle_all(world(8, 100), fingerprint="strangers")
    harness.settle_all(WORLD)
    leader = harness.leader()
    async with harness.working(leader):
        await harness.until(lambda: len(harness.weights) == len(whole.weights))
        assert leader.view.counts["records", "foreign"] > 100
    assert harness.log == whole.log
    n_states = len(harness.states)
    successor = harness.leader(fingerprint="strangers")
    async with harness.working(successor):
        await harness.until(lambda: len(harness.states) > n_states)
    state = harness.states[-1]
    assert state["input_fingerprint"] == "strangers"
    assert state["state"]["models"][0]["epoch"] == 1
    assert sum(n for n, _ in state["state"]["taken"].values()) <= 100


async def test_changed_rules_begin_an_epoch_where_the_former_ended(whole):
    harness = LeaderHarness()
    await promoted(harness)
    leader = harness.leader(rules_fingerprint="others")
    async with harness.working(leader):
        await harness.until(lambda: leader.view.is_leader)
        [model_learner] = leader.view.models
        assert (model_learner.epoch, model_learner.champion is not None) == (1, True)


@pytest.mark.parametrize("value", [b"{}", b"{", b'{"format":7}'])
async def test_an_unreadable_state_ends_the_leader_with_a_remedy(value):
    harness = LeaderHarness()
    harness.broker.leader.written["weights"].append(OutputRecord(STATE_KEY, value))
    with pytest.raises(SourceUnusable, match="evaluator weights forget"):
        await harness.leader().run()


async def test_transforms_of_features_that_no_model_has_are_logged_once():
    harness = LeaderHarness()
    leader = harness.leader(made=rules(transforms={"prise": Transform(log1p=True)}))
    with capture_logs() as logs:
        async with harness.working(leader):
            harness.settle_all(WORLD)
            await harness.until_taken(leader, len(WORLD))
    found = [line for line in logs if line["event"] == "transforms_unknown"]
    assert [(line["model"], line["features"]) for line in found] == [("m", ["prise"])]


async def test_unreadable_records_are_counted_and_logged():
    harness = LeaderHarness()
    harness.broker.write(
        ("settled", 0), [OutputRecord(b"k", b"{", (("fingerprint", FINGERPRINT.encode()),))]
    )
    leader = harness.leader()
    with capture_logs() as logs:
        async with harness.working(leader):
            await harness.until(lambda: leader.view.counts["records", "unreadable"] == 1)
    [line] = [line for line in logs if line["event"] == "settled_unreadable"]
    assert (line["task"], line["offset"]) == (0, 0)


# --- an operator's command ------------------------------------------------------------------------


async def test_an_operator_can_roll_back():
    harness = LeaderHarness()
    leader = harness.leader()
    async with harness.working(leader):
        harness.settle_all(WORLD)
        await harness.until(lambda: "m" in leader.live)
        command = Command(1, "roll_back", "worse by the shop's own figures", (3.0, 2.0, 1.0), NAMES)
        written = harness.broker.leader.written["weights"]
        written.append(OutputRecord(command_key("m"), command_record(command)))
        harness.broker.notify()
        queries, watermark_records = much_later(harness.states[-1])
        harness.settle(queries[:3])
        await harness.until_taken(leader, len(WORLD) + 3)
        harness.settle([*queries[3:], *watermark_records])
        await harness.until(lambda: "rolled_back" in {each["status"] for each in harness.log})
        await harness.until(lambda: json.loads(leader.live["m"])["status"] == "rolled_back")
    [back] = [each for each in harness.log if each["status"] == "rolled_back"]
    assert (back["weights"], back["reason"]) == ([3.0, 2.0, 1.0], command.reason)
    assert json.loads(leader.live["m"])["weights"] == [3.0, 2.0, 1.0]


@pytest.mark.slow(alone=False)
async def test_weights_learned_after_forget_are_distinct_from_those_live_before():
    """The same queries again result in the same weights, under new versions."""
    harness = LeaderHarness()
    command = Command(7, "freeze", "until the fair is over")
    async with harness.working(harness.leader()) as leader:
        harness.settle_all(WORLD)
        await harness.until_taken(leader, len(WORLD))
        before, published = await harness.until_read_back(leader, "m"), harness.log
    written = harness.broker.leader.written["weights"]
    written.append(OutputRecord(command_key("m"), command_record(command)))
    written.append(OutputRecord(STATE_KEY, emptied_state(published, {"m": 7})))
    async with harness.working(harness.leader()) as leader:
        await harness.until_taken(leader, len(WORLD))
        after = await harness.until_read_back(leader, "m")
    new = harness.log[len(published) :]
    assert [each["status"] for each in new] == [each["status"] for each in published]
    assert [each["weights"] for each in new] == [each["weights"] for each in published]
    versions = [each["version"] for each in harness.log]
    assert versions == list(range(1, len(versions) + 1))
    assert {each["epoch"] for each in new} == {max(each["epoch"] for each in published) + 1}
    checksums = [each["checksum"] for each in harness.log]
    assert [each["parent"] for each in harness.log] == [None, *checksums[:-1]]
    assert len(set(checksums)) == len(checksums)
    live = [json.loads(each)["checksum"] for each in (before, after)]

    async def question(client):  # as a recommender that has the old ones
        has = {"If-None-Match": f'"{live[0]}"'}
        answer = await client.get("/weights", headers=has)
        assert (answer.status, await answer.read()) == (200, after)
        assert answer.headers["ETag"] == f'"{live[1]}"'

    await asyncio.to_thread(
        run_with_client, FixedViews(live={"m": after}, learned=learned()), question
    )


def test_after_forget_the_most_recently_published_models_continue():
    published = [
        {"model": f"m{i % 20:02}", "epoch": 3 - i // 20, "version": 1 + i // 20, "checksum": str(i)}
        | {"event_time_ms": i}
        for i in range(40)
    ]
    stored = read_state(emptied_state(published, {"m05": 9, "gone": 1}))
    models = {each["model"]: each for each in stored.state["models"]}
    assert list(models) == [f"m{i:02}" for i in range(4, 20)]
    assert {(each["epoch"], each["version"]) for each in models.values()} == {(3, 2)}
    assert [models[name]["last_command"] for name in ("m04", "m05")] == [0, 9]
    assert stored.parents == {f"m{i:02}": str(20 + i) for i in range(4, 20)}
    assert (stored.positions, stored.event_time_ms) == ({}, 39)


async def test_an_unreadable_command_is_logged_once():
    harness = LeaderHarness()
    written = harness.broker.leader.written["weights"]
    written.append(OutputRecord(command_key("m"), b'{"action":"dance"}'))
    leader = harness.leader()
    with capture_logs() as logs:
        async with harness.working(leader):
            harness.settle_all(WORLD)
            await harness.until(lambda: "m" in leader.live)
    assert [line["event"] for line in logs].count("command_unreadable") == 1


async def test_live_weights_that_are_deleted_are_not_live():
    harness = LeaderHarness()
    await promoted(harness)
    leader = harness.leader()
    async with harness.working(leader):
        await harness.until(lambda: "m" in leader.live)
        harness.broker.leader.written["weights"].append(OutputRecord(b'"m"', b""))
        harness.broker.notify()
        await harness.until(lambda: "m" not in leader.live)


async def test_changed_live_weights_are_not_served():
    harness = LeaderHarness()
    await promoted(harness)
    leader = harness.leader()
    async with harness.working(leader):
        await harness.until(lambda: "m" in leader.live)
        live = leader.live["m"]
        other = live.replace(b'"epoch":0', b'"epoch":1')
        written = harness.broker.leader.written["weights"]
        with capture_logs() as logs:
            written += [OutputRecord(b'"m"', each) for each in (other, b"{", b"[]", b"\xff")]
            harness.broker.notify()
            await harness.until(
                lambda: [line["event"] for line in logs].count("weights_unreadable") == 4
            )
        assert leader.live["m"] == live


async def test_a_state_of_another_layout_ends_the_leader_with_a_remedy():
    harness = LeaderHarness()
    await promoted(harness)
    state = json.loads(harness.weights[-1].value)
    del state["state"]["models"][0]["last_command"], state["checksum"]
    whole = encode_document({**state, "checksum": checksum_of(state)})
    harness.broker.leader.written["weights"].append(OutputRecord(STATE_KEY, whole))
    with pytest.raises(SourceUnusable, match="evaluator weights forget"):
        await harness.leader().run()


# --- records that no leader has written ----------------------------------------------------------

DEEP = b"[" * 100_000


async def test_invalid_records_in_the_topic_of_weights_are_skipped():
    harness = LeaderHarness()
    await promoted(harness)
    [*_, live] = [json.loads(r.value) for r in harness.weights if r.key == b'"m"']
    unsealed = json.dumps({name: live[name] for name in live if name != "checksum"}).encode()
    keys = [DEEP, b'"\\ud800"', b"\xff", b'["command",["m"]]', b"1e400", b"9" * 5_000]
    values = [DEEP, unsealed, b'{"format":1,"weights":[1e400]}', b'{"weights":' + DEEP]
    words = [DEEP, b'{"format":1,"number":-1}', b'{"number":9223372036854775808}']
    written = harness.broker.leader.written["weights"]
    written += [OutputRecord(key, b"{}") for key in keys]
    written += [OutputRecord(b'"m"', value) for value in values]
    written += [OutputRecord(command_key("m"), value) for value in words]
    follower = harness.leader()
    with capture_logs() as logs:
        async with harness.working(follower):
            await harness.until(lambda: follower.view.is_leader)
            assert json.loads(follower.live["m"])["version"] == live["version"]
            assert list(follower.live) == ["m"]
    events = [line["event"] for line in logs]
    assert events.count("weights_unreadable") == len(values)
    assert events.count("command_unreadable") == len(words)


async def test_a_settled_record_of_another_task_is_unreadable():
    harness = LeaderHarness()
    headers = ((FINGERPRINT_HEADER, FINGERPRINT.encode()),)
    values = [b'{"task":99,"n":1,"watermark_ms":5}', b'{"task":1,"n":1,"watermark_ms":5}', DEEP]
    harness.broker.write(("settled", 0), [OutputRecord(b"k", value, headers) for value in values])
    leader = harness.leader()
    with capture_logs() as logs:
        async with harness.working(leader):
            await harness.until(lambda: leader.view.counts["records", "unreadable"] == len(values))
    assert [line["n"] for line in logs if line["event"] == "settled_unreadable"] == [1, 2]

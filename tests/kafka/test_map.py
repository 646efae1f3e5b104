"""`evaluator map` on a real broker: a group that copies foreign topics to canonical ones."""

import asyncio
import json
import random
import signal
from itertools import accumulate

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from evaluator.adapters.kafka import PARTITIONERS, Connection
from evaluator.adapters.kafka.clients import requests
from evaluator.cli import main
from tests.contract.backends import recreate_topic
from tests.kafka.process import Worker
from tests.kafka.test_mapping import NOW_MS, create

pytestmark = pytest.mark.kafka

LEAD_MS = 10_000
SPAN_MS = 600_000
GAP_MS = 3_600_000
"""A night without events: members whose next records are far ahead must not wait for each other."""
MAPPING = """
[rankings]
topic = "{rankings}"
where = {{ type = ["impression"] }}
trace_id = "session"
node_id = "query"
timestamp_ms = "at"
[rankings.rows]
each = "items"
candidate_id = "id"
score = "score"
[judgments]
topic = "{judgments}"
where = {{ type = ["click"] }}
trace_id = "session"
node_id = "query"
timestamp_ms = "at"
source = {{ const = "click" }}
candidate_id = "item"
grade = {{ path = "action", table = {{ click = 1, buy = 3 }} }}
"""


def events(n):
    """Impressions, clicks and banners in the order of time, and records that cannot be mapped."""
    chance = random.Random(7)
    found = []
    for number in range(n):
        at = NOW_MS + number * SPAN_MS // n + GAP_MS * (2 * number > n)
        key = {"session": f"s-{number}", "query": number % 3}
        items = [
            {"id": item, "score": round(chance.random(), 3)} for item in chance.sample(range(99), 4)
        ]
        found.append((at, "impressions", {"type": "impression", **key, "at": at, "items": items}))
        if number % 4 == 0:
            found.append((at, "impressions", {"type": "banner", "at": at}))
        if number % 50 == 0:
            found.append(
                (at, "impressions", {"type": "impression", "at": at, "session": f"bad {number}"})
            )
        for item in items[:2]:
            click = {"type": "click", **key, "at": at + 9_000, "item": item["id"]}
            click["action"] = chance.choice(["click", "buy", "view"])
            found.append((at + 9_000, "clicks", click))
    return sorted(found, key=lambda each: each[0])


async def fill(connection, placed):
    """Sends (topic, partition, value)."""
    async with AIOKafkaProducer(bootstrap_servers=connection.bootstrap) as producer:
        sent = [
            await producer.send(topic, json.dumps(value).encode(), b"user", partition=partition)
            for topic, partition, value in placed
        ]
        await asyncio.gather(*sent)


async def everything(connection, topic, n_partitions):
    """All records of a topic, by partition."""
    async with AIOKafkaConsumer(bootstrap_servers=connection.bootstrap) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(n_partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        found = {number: [] for number in range(n_partitions)}
        while [each for each in partitions if await consumer.position(each) < ends[each]]:
            for each, rows in (await consumer.getmany(timeout_ms=100)).items():
                found[each.partition] += rows
    return found


class Foreign:
    """Foreign topics without useful keys, and the same records in topics of one partition."""

    def __init__(self, connection, prefix, directory, *, counts, n_events):
        self.connection, self.prefix, self.directory = connection, prefix, directory
        self.source = f"--source=kafka://{connection.bootstrap}"
        self.events = events(n_events)
        topics = {name: f"{prefix}{name}" for name in counts}
        direct = {name: f"{prefix}direct-{name}" for name in ("impressions", "clicks")}
        self.to = (f"{prefix}to-rankings", f"{prefix}to-judgments")
        sizes = {topics[name]: n for name, n in counts.items()} | dict.fromkeys(direct.values(), 1)
        asyncio.run(
            create(connection, sizes | dict.fromkeys(self.to, 4) | {f"{prefix}dead-letters": 2})
        )
        chance = random.Random(8)
        placed = []
        for _, name, value in self.events:
            topic = name if name in topics else "all"
            placed.append((topics[topic], chance.randrange(counts[topic]), value))
            placed.append((direct[name], 0, value))
        self.placed = placed
        texts = {
            "foreign": (
                topics.get("impressions", f"{prefix}all"),
                topics.get("clicks", f"{prefix}all"),
            ),
            "direct": tuple(direct.values()),
        }
        for name, (rankings, judgments) in texts.items():
            text = MAPPING.format(rankings=rankings, judgments=judgments)
            (directory / f"{name}.toml").write_text(text)

    def fill(self, placed=None):
        """Fills the topics."""
        asyncio.run(fill(self.connection, self.placed if placed is None else placed))

    def member(self, *flags, **settings):
        """A process of the mapping group."""
        return Worker(
            self.directory, self.connection.bootstrap, self.prefix,
            f"--mapping={self.directory / 'foreign.toml'}", f"--to={','.join(self.to)}", *flags,
            command="map", out_of_orderness_ms=2 * LEAD_MS, session_timeout_ms=2_000,
            **{"max_poll_records": 200, **settings},
        )  # fmt: skip

    def replayed(self, name, *settings):
        """The totals of a replay."""
        out = self.directory / name
        settings = [f"--set={each}" for each in (*settings, f"topic_prefix={self.prefix}")]
        assert main(["replay", self.source, f"--out={out}", "--at-end=settle", *settings]) == 0
        return json.loads((out / "totals.json").read_text())

    def written(self):
        """The messages of both canonical topics."""
        topics = [asyncio.run(everything(self.connection, topic, 4)) for topic in self.to]
        return [rows for topic in topics for rows in topic.values()]

    def require_equal_totals(self):
        """The results of an evaluator for canonical topics equal those for the foreign ones."""
        names = (f"rankings_topic={self.to[0]}", f"judgments_topic={self.to[1]}")
        mapped = self.replayed("mapped", *names, f"out_of_orderness_ms={2 * LEAD_MS}")
        direct = self.replayed("replayed", f"mapping={self.directory / 'direct.toml'}")
        assert mapped["totals"] == direct["totals"] != []
        assert mapped["queries"] == direct["queries"]
        for log, expected in direct["ledger"].items():
            found = mapped["ledger"][log]
            repeated = found.pop("duplicate")
            assert found.pop("read") - repeated == (
                expected.pop("read") - expected.pop("left_out") - expected["malformed"]
            )
            assert expected.pop("duplicate") == found.pop("left_out") == found.pop("malformed") == 0
            assert expected.pop("malformed") == (log == "rankings") * self.n_bad
            assert found == expected
        assert mapped["queries"]["settled"] > 0
        return mapped

    @property
    def n_bad(self):
        """Records that cannot be mapped."""
        return sum("bad" in str(value.get("session")) for _, _, value in self.events)

    def letters(self):
        """The dead letters."""
        found = asyncio.run(everything(self.connection, f"{self.prefix}dead-letters", 2))
        return [row for rows in found.values() for row in rows]


@pytest.fixture
def started():
    """Processes that end with the test."""
    processes = []
    yield processes
    for process in processes:
        process.end()


def until_written(foreign, member):
    """Waits until everything is mapped; the member is the only one, and keeps running."""

    def positions():
        return [each["position"] for each in member.document("/status")["partitions"].values()]

    member.until_ready()
    member.eventually(lambda: sum(positions()) == len(foreign.events))


def test_two_members_with_one_killed_write_what_a_direct_worker_reads(
    kafka, topic_prefix, tmp_path, started
):
    counts = {"impressions": 3, "clicks": 2}
    foreign = Foreign(kafka, topic_prefix, tmp_path, counts=counts, n_events=4_000)
    first = foreign.member()
    started.append(first)
    first.until_ready()
    second = foreign.member()
    started.append(second)
    second.until_ready()
    first.eventually(lambda: len(first.document("/status").get("partitions", ())) < 5)
    foreign.fill()

    def half():
        series = second.samples()
        return (
            sum(n for name, n in series.items() if name.startswith("evaluator_map_messages")) > 100
        )

    second.eventually(half)
    second.signal(signal.SIGKILL)
    second.wait()
    until_written(foreign, first)
    samples = first.samples()
    assert samples["evaluator_ready"] == 1
    assert samples['evaluator_map_records_total{outcome="left_out",topic="rankings"}'] > 0
    assert first.stop() == 0, first.err
    foreign.require_equal_totals()
    letters = {row.value: dict(row.headers) for row in foreign.letters()}
    assert len(letters) == foreign.n_bad > 0
    for value, headers in letters.items():
        assert json.loads(value)["session"].startswith("bad ")
        assert headers["reason"] == b"mapping"
        assert headers["topic"] == f"{topic_prefix}impressions".encode()
    behind_ms = []
    for rows in foreign.written():
        assert rows
        for row in rows:
            assert row.key.decode() == json.loads(row.value)["trace_id"]
            assert PARTITIONERS["murmur2"](row.key, 4) == row.partition
        values = dict.fromkeys(row.value for row in rows)  # repeated ones are duplicates
        times = [json.loads(value)["timestamp_ms"] for value in values]
        latest = accumulate(times, max)
        behind_ms.append(max(after - at for after, at in zip(latest, times, strict=True)))
    assert 0 < max(behind_ms) <= 2 * LEAD_MS  # out_of_orderness_ms of the members


def test_one_topic_with_both_kinds_becomes_two(kafka, topic_prefix, tmp_path, started):
    foreign = Foreign(kafka, topic_prefix, tmp_path, counts={"all": 2}, n_events=300)
    foreign.fill()
    member = foreign.member()
    started.append(member)
    until_written(foreign, member)
    assert member.stop() == 0, member.err
    mapped = foreign.require_equal_totals()
    assert mapped["ledger"]["rankings"]["open"] + mapped["ledger"]["rankings"]["expired"] == 300


def test_a_group_continues_only_while_keys_are_reserved(kafka, topic_prefix, tmp_path, started):
    foreign = Foreign(kafka, topic_prefix, tmp_path, counts={"all": 2}, n_events=60)
    foreign.fill()
    reserved = {"retention_ms": 60_000, "maturity_ms": 1, "remember_ms": 0, "early_ms": 0}
    short = {**reserved, "retention_ms": 1}

    def member(*flags, **settings):
        started.append(foreign.member(*flags, **settings))
        return started[-1]

    killed = member(**reserved)
    until_written(foreign, killed)
    killed.eventually(lambda: killed.document("/status").get("last_commit_ms"))
    killed.end()
    refused = member(**short)
    assert refused.wait() == 3
    assert "on may have been written" in refused.err
    assert "--accept-repeats" in refused.err
    accepted = member("--accept-repeats", **short)
    until_written(foreign, accepted)
    assert accepted.stop() == 0, accepted.err
    n_letters = len(foreign.letters())
    again = member(**short)  # the one before was stopped in order
    until_written(foreign, again)
    assert again.stop() == 0, again.err
    assert len(foreign.letters()) == n_letters >= foreign.n_bad

    other = member(**reserved, group_id=f"{topic_prefix}other")
    assert other.wait() == 3
    assert f"group {topic_prefix}other-map has no offsets" in other.err


async def recreate(connection, group_id, topic, n_partitions):
    """Recreates a topic; the group has the offsets of the old one, as if committed just after."""
    every = [TopicPartition(topic, number) for number in range(n_partitions)]
    async with requests(connection) as asking:
        old = await asking.committed(group_id, every)
    await recreate_topic(connection, topic, n_partitions)
    arguments = {**connection.arguments(), "group_id": group_id, "enable_auto_commit": False}
    async with AIOKafkaConsumer(**arguments) as consumer:
        consumer.assign(every)
        await consumer.commit({each: (it.offset, it.metadata) for each, it in old.items()})
    return [old[each].offset for each in every]


def test_a_recreated_topic_is_read_from_its_beginning(kafka, topic_prefix, tmp_path, started):
    counts = {"impressions": 1, "clicks": 2}
    foreign = Foreign(kafka, topic_prefix, tmp_path, counts=counts, n_events=60)
    topic = f"{topic_prefix}clicks"
    clicks = [each for each in foreign.placed if each[0] == topic]
    first, last = clicks[:40], clicks[40:]
    foreign.fill([each for each in foreign.placed if each not in last])
    started.append(foreign.member())
    started[0].until_ready()

    def until_committed(member, placed):
        positions = [sum(each[1] == number for each in placed) for number in (0, 1)]

        def found():
            partitions = member.document("/status").get("partitions", {})
            return [partitions.get(f"judgments-{n}", {}).get("position") for n in (0, 1)]

        member.eventually(lambda: found() == positions)
        return positions

    before = until_committed(started[0], first)
    assert started[0].stop() == 0, started[0].err
    group = started[0].settings["group_id"]
    assert asyncio.run(recreate(kafka, f"{group}-map", topic, 2)) == before
    # Partition 0 grows beyond the old offset, partition 1 does not reach it.
    last = [(topic, int(index == 0), value) for index, (_, _, value) in enumerate(last)]
    foreign.fill(last)
    started.append(foreign.member())
    now = until_committed(started[1], last)
    assert now[0] > before[0]
    assert now[1] < before[1]
    lines = started[1].events("mapper_begins_anew")
    assert [(each["partition"], each["committed"]) for each in lines] == [*enumerate(before)]
    assert all("the topic was recreated: its id is " in each["reason"] for each in lines)
    counted = started[1].samples()['evaluator_map_begun_anew_total{topic="judgments"}']
    assert counted == 2
    assert started[1].stop() == 0, started[1].err
    foreign.require_equal_totals()
    started.append(foreign.member())  # now the commits are of this topic
    until_committed(started[2], last)
    assert started[2].stop() == 0, started[2].err
    assert not started[2].events("mapper_begins_anew")


def test_no_record_is_lost_when_the_broker_restarts(own_broker, topic_prefix, tmp_path, started):
    connection = Connection(own_broker.bootstrap)
    counts = {"impressions": 3, "clicks": 2}
    foreign = Foreign(connection, topic_prefix, tmp_path, counts=counts, n_events=1_000)
    started.append(foreign.member(max_poll_records=7))
    (member,) = started
    member.until_ready()
    foreign.fill()
    member.eventually(
        lambda: any(n for name, n in member.samples().items() if "messages_total" in name)
    )
    own_broker.stop()
    member.until_unavailable()
    own_broker.start()
    until_written(foreign, member)
    assert member.events("mapper_waits")
    own_broker.stop()
    member.until_unavailable()
    assert member.stop() == 0, member.err  # perhaps before all was acknowledged
    own_broker.start()
    started.append(foreign.member())
    until_written(foreign, started[-1])
    assert started[-1].stop() == 0, started[-1].err
    foreign.require_equal_totals()

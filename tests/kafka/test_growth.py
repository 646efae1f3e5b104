"""docs/growth.md: from two partitions to four, with the totals of one run over all inputs."""

import json
import tomllib

import pytest

from evaluator.config.kinds import as_text
from tests.kafka.broker import free_ports
from tests.kafka.page import blocks, output_of
from tests.kafka.process import arguments_of
from tests.oracle.messages import Raw
from tests.oracle.totals import comparable
from tests.replay.running import judgment, ranking
from tests.tidy.tree import ROOT
from tests.worker.traffic import LONG_AGO_MS, SETTINGS
from tests.worker.truth import Truth, merged

pytestmark = pytest.mark.kafka

PAGE = ROOT / "docs" / "growth.md"
SECOND = 1_000
N_QUERIES = 60
MOVE_MS = 30 * SECOND
END_MS = 300 * SECOND
DELAYS = (-SECOND, 5 * SECOND, 30 * SECOND, 59 * SECOND)
"""Of judgments: early, before and after maturity, and shortly before the end of retention."""


def key_of(number):
    return f"t-{number}"


def raw(at_ms, number, value):
    return Raw(0, LONG_AGO_MS + at_ms, value, key_of(number).encode())


def rankings_of(begin_ms, end_ms):
    """By query: rankings of each second."""
    return [
        (
            number,
            raw(number * SECOND, number, ranking(key_of(number), LONG_AGO_MS + number * SECOND)),
        )
        for number in range(N_QUERIES)
        if begin_ms <= number * SECOND < end_ms
    ]


def judgments_of(begin_ms, end_ms):
    """By query, in time order: each grades one more candidate."""
    found = []
    for number in range(N_QUERIES):
        for n, delay_ms in enumerate(DELAYS):
            at_ms = number * SECOND + delay_ms
            if begin_ms <= at_ms < end_ms:
                grades = {"a": (number + n) % 3, "b": n}
                sent = judgment(key_of(number), LONG_AGO_MS + at_ms, grades, judgment_id=f"j{n}")
                found.append((at_ms, number, raw(at_ms, number, sent)))
    return [(number, each) for _, number, each in sorted(found, key=lambda each: each[:2])]


def send(world, log, messages):
    """To the partition of each key."""
    records = {}
    for number, each in messages:
        records.setdefault((log, number % world.n_tasks), []).append(each)
    world.produce(records)


def end_of_time(world):
    """Heartbeats of producers, long after everything."""
    last = Raw(0, LONG_AGO_MS + END_MS, None, None)
    world.produce(
        {(log, n): [last] for log in ("rankings", "judgments") for n in range(world.n_tasks)}
    )


def totals_of_one_run():
    """The oracle over all messages in one partition, each sent once."""
    forever = (-END_MS, END_MS)
    logs = [[each for _, each in of(*forever)] for of in (rankings_of, judgments_of)]
    for log in logs:
        log.append(Raw(0, LONG_AGO_MS + END_MS, None, None))
    numbered = [
        [Raw(offset, each.timestamp_ms, each.value, each.key) for offset, each in enumerate(log)]
        for log in logs
    ]
    return Truth({0: tuple(numbered)}, SETTINGS).totals


@pytest.fixture
def settings_of_both(topic_prefix, tmp_path):
    """The settings of old and new workers as on the page, with names of the test; also as files."""
    old_port, new_port = map(str, free_ports(2))
    old = {"topic_prefix": topic_prefix, "group_id": f"{topic_prefix}old", "alarms": "off"}
    old |= {**arguments_of(SETTINGS), "http_port": old_port, "state_dir": str(tmp_path / "state")}
    (page,) = blocks(PAGE, "toml")
    new = {name: as_text(value) for name, value in tomllib.loads(page).items()}
    assert new["http_port"] == "9465"
    new = {**old, **new, "http_port": new_port, "state_dir": str(tmp_path / new["state_dir"])}
    for name in ("topic_prefix", "output_prefix", "group_id"):
        new[name] = f"{topic_prefix}{new[name]}"
    for name, each in (("old", old), ("new", new)):
        lines = [f"{key} = {json.dumps(str(value))}\n" for key, value in each.items()]
        (tmp_path / f"{name}.toml").write_text("".join(lines), "utf-8")
    return old, new


def test_old_and_new_workers_have_the_totals_of_one_run_over_all(
    make_world, start, kafka, settings_of_both, tmp_path
):
    old_settings, new_settings = settings_of_both
    create, run, wait, expired, note, add, merge = blocks(PAGE, "sh")
    assert run == "evaluator run --source kafka://localhost:9092 --config new.toml\n"

    def executed(commands):
        commands = commands.replace("localhost:9465", f"127.0.0.1:{new_settings['http_port']}")
        commands = commands.replace("localhost:9464", f"127.0.0.1:{old_settings['http_port']}")
        commands = commands.replace("--partitions 8", "--partitions 4").replace(
            "sleep 60", "sleep 1"
        )
        return output_of(commands, kafka, "", tmp_path, settings={})

    def started(world, settings):
        own = {
            name: each
            for name, each in settings.items()
            if name not in {"topic_prefix", "http_port"}
        }
        return start(world, port=int(settings["http_port"]), **own)

    before = make_world(2)
    old = started(before, old_settings)
    send(before, "rankings", rankings_of(0, MOVE_MS))
    send(before, "judgments", judgments_of(-SECOND, MOVE_MS - SETTINGS.early_ms))
    executed(create)
    after = make_world(4, prefix_end="v2.", create=False)
    new = started(after, new_settings)
    executed(wait)

    both_end_ms = MOVE_MS + SETTINGS.retention_ms + SETTINGS.early_ms
    doubled = judgments_of(MOVE_MS - SETTINGS.early_ms, both_end_ms)
    for world in (before, after):
        send(world, "judgments", doubled)
    send(after, "rankings", rankings_of(MOVE_MS, END_MS))
    send(after, "judgments", judgments_of(both_end_ms, END_MS))
    for world in (before, after):
        end_of_time(world)
    executed(expired)
    for worker, world in ((old, before), (new, after)):
        worker.until_read(world.ends())
        assert comparable(worker.totals) == world.truth().totals

    live, one_run = merged([old.totals, new.totals]), totals_of_one_run()
    assert old.stop() == 0
    executed(note)
    assert new.stop() == 0  # writes its last checkpoints
    executed(add)
    executed(merge)
    names = ("total.json", "total/totals.json")
    documents = [json.loads((tmp_path / name).read_text("utf-8")) for name in names]
    for totals in (live, *map(comparable, documents)):
        assert totals["totals"] == one_run["totals"]
        assert totals["queries"] == one_run["queries"]
        assert totals["ledger"]["judgments"]["orphan"] == len(doubled)
    assert one_run["queries"]["settled_judged"] == N_QUERIES
    assert one_run["ledger"]["judgments"]["orphan"] == 0
    saved = json.loads((tmp_path / "old.json").read_text("utf-8"))
    assert comparable(saved) == before.truth().totals

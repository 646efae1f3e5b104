"""Record batches damaged on the disk of the broker: reported, skipped, and read past."""

import asyncio
import json
import re
import struct

import pytest
from aiokafka.record.util import calc_crc32c

from evaluator.adapters.kafka import Connection, GroupSettings, KafkaSource
from evaluator.cli import main
from tests.kafka.process import arguments_of
from tests.kafka.world import World
from tests.oracle.totals import comparable
from tests.worker.traffic import traffic
from tests.worker.truth import Truth

pytestmark = pytest.mark.kafka

_CRC_AT, _CRC_OF = 17, 21
"""Positions in a batch of format 2: of its checksum, and of the bytes that it covers."""


def batches(data):
    """Where each batch of a segment begins and ends, and its first and last offset."""
    at = 0
    while at < len(data):
        first, length = struct.unpack_from(">qi", data, at)
        (last_delta,) = struct.unpack_from(">i", data, at + 23)
        yield at, at + 12 + length, first, first + last_delta
        at += 12 + length


def damage(broker, topic, *, number, sealed):
    """Damages one batch, whose checksum fits again if *sealed*; its first and last offset."""
    [segment] = (broker.directory / "data" / f"{topic}-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    start, end, first, last = list(batches(data))[number]
    data[start + 61] ^= 0xFF  # the length of the first record
    if sealed:
        struct.pack_into(
            ">I", data, start + _CRC_AT, calc_crc32c(bytes(data[start + _CRC_OF : end]))
        )
    segment.write_bytes(data)
    return first, last


def lose_end(broker, topic):
    """Cuts the last batch off, as an unclean election does; the offsets that are gone."""
    folder = broker.directory / "data" / f"{topic}-0"
    [segment] = folder.glob("*.log")
    data = segment.read_bytes()
    start, _, first, last = list(batches(data))[-1]
    segment.write_bytes(data[:start])
    for index in (*folder.glob("*.index"), *folder.glob("*.timeindex")):
        index.unlink()  # made again at the start of the broker
    return first, last


def without(inputs, gone):
    """The inputs but for these ranges of offsets, by log."""

    def left(log, raws):
        return [
            raw
            for raw in raws
            if not any(first <= raw.offset <= last for first, last in gone.get(log, ()))
        ]

    return {
        task: (left("rankings", rankings), left("judgments", judgments))
        for task, (rankings, judgments) in inputs.items()
    }


def test_a_damaged_batch_is_named_and_skipped_and_all_other_values_are_exact(
    own_broker, start, topic_prefix, tmp_path, capsys
):
    world = World(Connection(own_broker.bootstrap), topic_prefix, n_tasks=1)
    for seed in range(4):
        world.append({0: traffic(seed, n_queries=15)})
    whole, ends = world.inputs(), world.ends()
    own_broker.stop()
    rankings, judgments = f"{topic_prefix}rankings", f"{topic_prefix}judgments"
    gone = {
        "rankings": [damage(own_broker, rankings, number=1, sealed=False)],
        "judgments": [
            damage(own_broker, judgments, number=2, sealed=True),
            damage(own_broker, judgments, number=3, sealed=False),  # the last one
        ],
    }
    own_broker.start()
    flags = []
    for _ in range(3):  # each worker names the next damaged batch, in whichever order they come
        worker = start(world, *flags, state_dir=tmp_path / "state")
        assert worker.wait() == 3
        line = worker.err.splitlines()[-1]
        found = re.search(r"`evaluator run (--skip (\S+))`", line)
        assert found, line
        flags += found[1].split()
    asked = {flags[i] for i in range(1, len(flags), 2)}
    assert asked == {
        f"{topic_prefix}{log}-0:{first}-{last}" for log in gone for first, last in gone[log]
    }
    worker = start(world, *flags, state_dir=tmp_path / "state")
    worker.until_read(ends)
    truth = Truth(without(whole, gone), world.settings, topic_prefix)
    assert comparable(worker.totals) == truth.totals
    n_gone = sum(last - first + 1 for ranges in gone.values() for first, last in ranges)
    assert worker.totals["extra"]["skipped"] == n_gone
    assert worker.stop() == 0
    truth.check_outputs(world.outputs(), once=False)

    # The state is of the inputs without them: the checkpoint has this, so no flag is needed again.
    rebuilt = start(world, state_dir=tmp_path / "other")
    rebuilt.until_read(ends)
    rebuilt.until_ready()
    assert comparable(rebuilt.totals) == truth.totals
    assert rebuilt.totals["extra"]["skipped"] == n_gone
    assert rebuilt.events("offsets_skipped")
    assert rebuilt.stop() == 0

    settings = {**arguments_of(world.settings), "topic_prefix": topic_prefix}
    arguments = [part for name in settings for part in ("--set", f"{name}={settings[name]}")]
    source = ["--source", f"kafka://{own_broker.bootstrap}", "--out", str(tmp_path / "replayed")]
    assert main(["replay", *source, *arguments]) == 3
    assert "--skip" in capsys.readouterr().err
    assert main(["replay", *source, *flags, *arguments]) == 0
    totals = json.loads((tmp_path / "replayed" / "totals.json").read_text())
    manifest = json.loads((tmp_path / "replayed" / "manifest.json").read_text())
    assert comparable(totals) == truth.totals
    assert totals["extra"]["skipped"] == n_gone
    merged = [[gone["judgments"][0][0], gone["judgments"][1][1]]]
    assert manifest["settings"]["skips"] == {
        "rankings-0": [list(gone["rankings"][0])],
        "judgments-0": merged,
    }


def test_records_at_returns_none_for_damaged_records_and_the_others_completely(
    own_broker, topic_prefix
):
    worlds = {
        sealed: World(Connection(own_broker.bootstrap), f"{topic_prefix}{sealed}-", n_tasks=2)
        for sealed in (True, False)
    }
    for world in worlds.values():
        for seed in range(2):
            world.append({task: traffic(seed, n_queries=15) for task in range(2)})
    own_broker.stop()
    gone = {
        sealed: damage(own_broker, f"{world.prefix}rankings", number=-1, sealed=sealed)
        for sealed, world in worlds.items()
    }
    own_broker.start()
    for sealed, world in worlds.items():
        first, last = gone[sealed]
        source = KafkaSource(world.connection, GroupSettings("g", world.prefix))
        damaged = [(("rankings", 0), offset) for offset in (first, last)]
        whole = [(("rankings", 0), first - 1), (("rankings", 1), last), (("judgments", 0), 3)]
        found = asyncio.run(source.records_at([*damaged, *whole]))
        assert [found[each] for each in damaged] == [None, None]
        assert [found[each].offsets for each in whole] == [[offset] for _, offset in whole]
        source.skip(("rankings", 1), [(last - 1, last)])
        assert asyncio.run(source.records_at(whole[1:2])) == {whole[1]: None}


def test_a_batch_damaged_or_lost_after_it_was_read_stops_only_workers_that_need_it(
    own_broker, start, topic_prefix, tmp_path
):
    same_disk, other_disk = (
        World(Connection(own_broker.bootstrap), f"{topic_prefix}{disk}-", n_tasks=1)
        for disk in ("same", "other")
    )
    state = tmp_path / "state"
    truth = read_to_the_end(same_disk, start, state)
    read_to_the_end(other_disk, start, tmp_path / "first")
    own_broker.stop()
    damage(own_broker, f"{same_disk.prefix}rankings", number=-1, sealed=False)
    rankings = f"{other_disk.prefix}rankings"
    first, last = damage(own_broker, rankings, number=-1, sealed=False)
    own_broker.start()

    flags = ("--skip", f"{rankings}-0:{first}-{last}")
    for given in ((), flags):  # records that were read are only left out with permission
        worker = start(other_disk, *given, state_dir=tmp_path / "other")
        assert worker.wait() == 3
        assert flags[1] in worker.err.splitlines()[-1]
    loses = start(other_disk, *flags, "--accept-loss", state_dir=tmp_path / "other")
    continues = start(same_disk, state_dir=state)
    for worker, world in ((loses, other_disk), (continues, same_disk)):
        worker.until_read(world.ends())
        assert not worker.events("store_quarantined")
        assert not worker.events("checkpoint_of_other_logs")
    assert comparable(continues.totals) == truth.totals
    assert [worker.stop() for worker in (loses, continues)] == [0, 0]
    truncate_and_grow_log(own_broker, same_disk, start, state)


def read_to_the_end(world, start, states):
    """Fills both logs, which a worker reads; returns the expected results."""
    for seed in range(3):
        world.append({0: traffic(seed, n_queries=15)})
    worker = start(world, state_dir=states)
    worker.until_read(world.ends())
    assert worker.stop() == 0
    return world.truth()


def truncate_and_grow_log(broker, world, start, states):
    """Deletes the damaged batch too, and lets the log grow beyond the position of the worker."""
    before, topic = world.ends(), f"{world.prefix}rankings"
    broker.stop()
    first, last = lose_end(broker, topic)
    broker.start()
    assert world.ends()["rankings-0"] == first
    world.produce({("rankings", 0): traffic(9, n_queries=60).of("rankings")})
    assert world.ends()["rankings-0"] > before["rankings-0"] == last + 1
    worker = start(world, state_dir=states)
    worker.until_read(world.ends())
    worker.until_ready()
    assert comparable(worker.totals) == world.truth().totals
    for event in ("store_quarantined", "checkpoint_of_other_logs"):
        (line,) = worker.events(event)
        assert line["reason"] == f"record {last} of rankings-0 is not the one that was read"
    assert worker.samples()['evaluator_quarantined_stores_total{task="0"}'] == 2
    assert worker.stop() == 0
    records = world.outputs()["settled", 0]
    generations = dict.fromkeys(dict(record.headers)["generation"] for record in records)
    old, new = generations
    assert new == old + b".1"
    (n, *_) = [
        json.loads(record.value)["n"]
        for record in records
        if dict(record.headers)["generation"] == new
    ]
    assert n == 0

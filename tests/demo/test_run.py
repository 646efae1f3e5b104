"""The feed of the demo: complete, never far ahead; failures of a worker are reported."""

import asyncio
import sys
import zlib

import pytest

from evaluator.core.types.tally import GroupedTally
from evaluator.demo import DemoWorld, RunningWorker, run, run_demo
from evaluator.exposition.snapshot import Snapshot, TaskView

N_PARTITIONS = 2


class Reader:
    """Replaces worker and broker: accepts appends, and 'commits' them later."""

    def __init__(self, *, per_turn: int) -> None:
        self.appended: list[tuple[str, int, bytes | None]] = []
        self.committed = 0
        self.farthest_ahead = 0
        self._per_turn = per_turn

    def append(self, log, partition, key, value, timestamp_ms):
        self.appended.append((log, partition, key))
        self.farthest_ahead = max(self.farthest_ahead, len(self.appended) - self.committed)

    def snapshot(self) -> Snapshot:
        tally = {("rankings", "read"): self.committed}
        return Snapshot((TaskView(0, {}, {}, {}, None, 0, 0, 0, False, GroupedTally.of(tally)),))

    async def work(self) -> None:
        while True:
            self.committed = min(self.committed + self._per_turn, len(self.appended))
            await asyncio.sleep(0)


async def demo(reader: Reader, worker: asyncio.Task[None], n_queries: int, **options) -> list[str]:
    printed: list[str] = []
    await run_demo(
        DemoWorld(1, n_queries=n_queries),
        worker=RunningWorker(
            task=worker,
            append=reader.append,
            produced=options.pop("produced", lambda output: []),
            snapshot=reader.snapshot,
            n_partitions=N_PARTITIONS,
        ),
        places=[("page", "http://127.0.0.1:9464/")],
        seconds=0,
        output=printed.append,
        **options,
    )
    return printed


async def test_all_messages_are_appended_and_committed_before_the_report():
    reader = Reader(per_turn=100)
    worker = asyncio.create_task(reader.work())
    (text,) = await demo(reader, worker, 300)
    worker.cancel()
    assert reader.committed == len(reader.appended) == len(list(DemoWorld(1, n_queries=300)))
    assert "http://127.0.0.1:9464/" in text
    assert "Too few queries have settled" in text


async def test_a_message_goes_to_the_partition_of_its_key_hash():
    reader = Reader(per_turn=10_000)
    worker = asyncio.create_task(reader.work())
    await demo(reader, worker, 300)
    worker.cancel()
    assert {partition for _, partition, _ in reader.appended} == {0, 1}
    for _, partition, key in reader.appended:
        assert partition == zlib.crc32(key or b"") % N_PARTITIONS


class Slow(Reader):
    """Reads only when it is checked, and less than is appended between two checks."""

    def snapshot(self) -> Snapshot:
        self.committed = min(self.committed + self._per_turn, len(self.appended))
        return super().snapshot()


@pytest.mark.slow(alone=False)
async def test_the_demo_waits_for_a_slow_worker(monkeypatch):
    monkeypatch.setattr(run, "MAX_AHEAD", 1_000)
    reader = Slow(per_turn=100)
    worker = asyncio.create_task(asyncio.Event().wait())
    await demo(reader, worker, 1_500)
    worker.cancel()
    assert 1_000 < reader.farthest_ahead <= 1_000 + 500


async def test_a_worker_that_fails_ends_the_demo_with_its_error():
    async def fail() -> None:
        raise ValueError("the broker burned down")

    with pytest.raises(ValueError, match="burned down"):
        await demo(Reader(per_turn=1), asyncio.create_task(fail()), 1_000)


async def test_a_worker_that_stops_early_is_an_error_too():
    async def stop() -> None:
        return

    with pytest.raises(RuntimeError, match="ended before"):
        await demo(Reader(per_turn=1), asyncio.create_task(stop()), 1_000)


@pytest.mark.parametrize("terminal", [True, False])
async def test_the_bar_is_shown_on_terminals_only(monkeypatch, capsys, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    reader = Reader(per_turn=10_000)
    worker = asyncio.create_task(reader.work())
    await demo(reader, worker, 300)
    worker.cancel()
    assert ("event time" in capsys.readouterr().err) == terminal

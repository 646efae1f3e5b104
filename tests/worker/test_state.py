"""Workers whose state is damaged, foreign, incomplete or unreachable: never a wrong number."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from evaluator.adapters.memory import MemoryStateDirectory
from evaluator.adapters.memory.state import MemoryStateStore
from evaluator.adapters.rocksdb import RocksStateDirectory
from evaluator.ports import StateDirectory, StateStore, StateUnusable
from evaluator.wire.state import checkpoint
from evaluator.wire.state import task_rows as wire
from evaluator.wire.state.task_rows import StateDamaged
from evaluator.worker import loop
from tests.repeats import first_quick, repeated, sized
from tests.waiting import finished
from tests.worker.harness import GROUP, WorkerHarness, counted, totals
from tests.worker.traffic import traffic

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow
N_QUERIES = sized(24, quick=16)
LITTLE_MEMORY = {"memory_tier_bytes": 20_000, "max_poll_records": 20}


@pytest.fixture(autouse=True)
def _commit_after_every_batch(monkeypatch):
    monkeypatch.setattr(loop, "COMMIT_INTERVAL_SECONDS", 0.0)


def filled_harness(n_queries: int = N_QUERIES) -> WorkerHarness:
    """Both tasks have the first part of their traffic."""
    harness = WorkerHarness()
    harness.append({task: traffic(task, n_queries=n_queries).part(0, 0.6) for task in (0, 1)})
    return harness


def append_rest(harness: WorkerHarness, n_queries: int = N_QUERIES) -> None:
    harness.append({task: traffic(task, n_queries=n_queries).part(0.6, 1) for task in (0, 1)})


async def run(
    harness: WorkerHarness, states: StateDirectory, **settings: int
) -> list[Mapping[str, object]]:
    """Runs a worker on the disk; returns its log. Its totals must be correct."""
    with capture_logs() as logs:
        worker = await harness.until_end(states=states, **{**LITTLE_MEMORY, **settings})
    truth = harness.truth()
    assert totals(harness.settings, worker) == truth.totals
    truth.check_outputs(harness.outputs(), once=False)
    assert harness.committed() == harness.ends()
    return logs


def quarantine(logs: list[Mapping[str, object]]) -> list[Mapping[str, object]]:
    return [line for line in logs if line["event"] == "store_quarantined"]


# Stores on a disk, damaged while no worker runs


def the(store: Path, pattern: str) -> Path:
    return max(store.glob(pattern), key=lambda file: file.stat().st_size)


def flip_in_the_middle(store: Path) -> None:
    for file in store.glob("*.sst"):
        data = bytearray(file.read_bytes())
        data[len(data) // 4] ^= 1
        file.write_bytes(data)


def opened_at(store: Path) -> StateStore:
    return RocksStateDirectory(store.parent).open(int(store.name.removeprefix("task-")))


def change_identity(**changes: object) -> Callable[[Path], None]:
    """Changes the identity of the store."""

    def change(store: Path) -> None:
        opened = opened_at(store)
        identity = json.loads(opened.get("meta", [wire.IDENTITY])[0] or b"")
        assert changes.keys() <= identity.keys()
        batch = opened.batch()
        batch.put("meta", [(wire.IDENTITY, json.dumps({**identity, **changes}).encode())])
        batch.write()
        opened.close()

    return change


def change_row(table: wire.Table, key: bytes | None, value: bytes | None) -> Callable[[Path], None]:
    """Writes a row that this version would not write; of the first key if *key* is None."""

    def change(store: Path) -> None:
        opened = opened_at(store)
        first = next(opened.rows(table))[0] if key is None else key
        batch = opened.batch()
        batch.put(table, [(first, value)])
        batch.write()
        opened.close()

    return change


DAMAGE: Mapping[str, Callable[[Path], object]] = {
    "truncated": lambda store: os.truncate(the(store, "*.sst"), 100),
    "a file is gone": lambda store: the(store, "*.sst").unlink(),
    "flipped": flip_in_the_middle,
    "no manifest": lambda store: the(store, "MANIFEST-*").unlink(),
    "empty CURRENT": lambda store: os.truncate(store / "CURRENT", 0),
    "of an earlier version": change_identity(format=wire.FORMAT - 1),
    "of a later version": change_identity(format=wire.FORMAT + 1),
    "of another cluster": change_identity(cluster="another"),
    "of another topic": change_identity(rankings="another"),
    "of another task": change_identity(task=1),
    "of another fingerprint": change_identity(fingerprint="another"),
    "identity is no JSON": change_row("meta", wire.IDENTITY, b"{"),
    "identity is a list": change_row("meta", wire.IDENTITY, b"[]"),
    "no identity": change_row("meta", wire.IDENTITY, None),
    "head is no JSON": change_row("meta", wire.HEAD, b"{"),
    "head lacks members": change_row("meta", wire.HEAD, b"{}"),
    "totals are no totals": change_row("totals", None, b"[1, 2]"),
    "a window is no window": change_row("windows", None, b"[[1]]"),
    "a run is too short": change_row("runs", None, b"1"),
    "a early judgment is too short": change_row("early", b"\0" * 8, b"1"),
    "a key of a wrong length": change_row("early", b"\0", b"\0" * 30),
}


ALONE = "flipped"
OTHERS = [name for name in DAMAGE if name != ALONE]


@pytest.mark.parametrize(
    "damages",
    first_quick(*((each,) for each in [(ALONE,), *zip(OTHERS[::2], OTHERS[1::2], strict=True)])),
    ids=" and ".join,
)
async def test_unusable_stores_are_quarantined_and_rebuilt(tmp_path, damages):
    """Of both tasks; if one store is damaged, that of the other task is used."""
    harness = filled_harness()
    states = RocksStateDirectory(tmp_path)
    await run(harness, states)
    for task, name in enumerate(damages):
        DAMAGE[name](tmp_path / f"task-{task}")
    append_rest(harness)
    lines = quarantine(await run(harness, states))
    assert sorted(line["task"] for line in lines) == [*range(len(damages))]
    for line in lines:
        assert line["reason"]
        assert line["place"] == str(tmp_path / f"task-{line['task']}-quarantine")
        is_of_settings = damages[line["task"]] == "of another fingerprint"
        assert line["log_level"] == ("info" if is_of_settings else "warning")
    assert not quarantine(await run(harness, states))  # the new one is whole


@pytest.mark.slow
async def test_checkpoints_are_read_only_for_tasks_without_a_store(tmp_path):
    harness, states, asked = filled_harness(), RocksStateDirectory(tmp_path), []

    async def tasks_asked_for():
        source = harness.source()
        checkpoints = source.checkpoints

        async def noted(tasks):
            asked.append(list(tasks))
            return await checkpoints(tasks)

        source.checkpoints = noted
        await harness.until_end(source=source, states=states)

    await tasks_asked_for()
    await tasks_asked_for()
    shutil.rmtree(tmp_path / "task-1")
    await tasks_asked_for()
    assert asked == [[0, 1], [1]]


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize(
    "expired", first_quick((("rankings", "judgments"),), (("judgments",),), ((),))
)
async def test_a_stale_store_repeats_no_output_even_if_the_group_has_no_commits(expired):
    """Offsets of a group that was unused for a week expire; the checkpoint does not."""
    harness, stale = filled_harness(), MemoryStateDirectory()
    await harness.until_end(states=stale)
    append_rest(harness)
    await harness.until_end()  # elsewhere
    before, commits = harness.outputs(), harness.broker.group(GROUP).commits
    for log, task in list(commits):
        if log in expired:
            del commits[log, task]
    with capture_logs() as logs:
        worker = await harness.until_end(states=stale)
    assert {"state_loaded", "task_restored"} <= {line["event"] for line in logs}
    assert not quarantine(logs)
    assert totals(harness.settings, worker) == harness.truth().totals
    assert harness.outputs() == before
    assert counted(worker.snapshot, "rankings") == counted(worker.snapshot, "judgments") == 0
    assert harness.committed() == harness.ends()


def delete_store_as_documented(state_dir: Path) -> None:
    """Runs the commands of docs/operations.md in the state directory."""
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    [found] = re.findall(r"in `state_dir`:\n\n```sh\n(.*?)```", page, re.DOTALL)
    subprocess.run(["sh", "-euc", found], cwd=state_dir, check=True)


@pytest.mark.slow
async def test_a_store_deleted_as_documented_is_rebuilt(tmp_path):
    harness = filled_harness()
    states = RocksStateDirectory(tmp_path)
    await run(harness, states)
    await asyncio.to_thread(delete_store_as_documented, tmp_path)
    assert {each.name for each in tmp_path.glob("task-*")} == {"task-1"}
    append_rest(harness)
    assert not quarantine(await run(harness, states))


@pytest.mark.slow
async def test_only_the_last_quarantined_store_is_kept(tmp_path):
    harness = filled_harness()
    states = RocksStateDirectory(tmp_path)
    for _ in range(2):
        await run(harness, states)
        the(tmp_path / "task-1", "MANIFEST-*").unlink()
    await run(harness, states)
    assert {path.name for path in tmp_path.iterdir()} >= {"task-0", "task-1", "task-1-quarantine"}
    assert len(list(tmp_path.glob("*quarantine*"))) == 1


# Damage found while the worker runs; a failing disk


class InjectedError:
    """Counts the calls of the stores, and raises an error at one of them."""

    def __init__(self, at: int | None = None, error: Exception | None = None) -> None:
        self.at = at
        self.error = error
        self.calls = 0

    def count_call(self) -> None:
        self.calls += 1
        if self.calls == self.at and self.error is not None:
            raise self.error


class FailingStore(MemoryStateStore):
    """A store in memory, every access of which may raise the injected error."""

    injected: InjectedError

    def _check(self) -> None:
        super()._check()
        self.injected.count_call()

    def all_rows(self, table: wire.Table) -> Mapping[bytes, bytes]:
        """Reads the rows without an injected error."""
        return self._tables[table]


class FailingDirectory(MemoryStateDirectory):
    def __init__(self, injected: InjectedError) -> None:
        super().__init__()
        self.injected = injected

    def open(self, task: int) -> FailingStore:
        store = FailingStore(self.stores.get(task))
        store.injected = self.injected
        self.stores[task] = store
        return store


@contextmanager
def injecting(states: FailingDirectory, injected: InjectedError) -> Iterator[None]:
    before, states.injected = states.injected, injected
    for store in states.stores.values():
        store.injected = injected
    yield
    states.injected = before


async def calls_of_a_run(found: list[tuple[int, int]] = []) -> tuple[int, int]:  # noqa: B006
    """Calls of a cold start, and including a warm start after it; computed once."""
    if found:
        return found[0]
    harness = filled_harness()
    states = FailingDirectory(InjectedError())
    await run(harness, states)
    first = states.injected.calls
    append_rest(harness)
    await run(harness, states)
    found.append((first, states.injected.calls))
    return found[0]


@pytest.mark.parametrize("part", repeated(6, quick=1))
async def test_damage_found_at_any_access_is_repaired(part):
    first, both = await calls_of_a_run()
    assert first > 12
    at = 1 + (both - 1) * part // 5
    harness = filled_harness()
    states = FailingDirectory(InjectedError(at, StateDamaged("met at last")))
    logs = await run(harness, states)
    append_rest(harness)
    logs += await run(harness, states)
    (line,) = quarantine(logs)
    assert line["reason"] == "met at last"


@pytest.mark.parametrize("part", repeated(6, quick=1))
async def test_a_failing_disk_ends_the_worker_without_loss(part):
    _, both = await calls_of_a_run()
    at = 1 + (both - 1) * part // 5
    harness = filled_harness()
    injected = InjectedError(at, StateUnusable("the disk is full"))
    states = FailingDirectory(injected)
    refused = 0
    for add_more in (append_rest, lambda _: None):
        try:
            await run(harness, states)
        except StateUnusable:
            refused += 1
            await run(harness, states)
        add_more(harness)
    assert refused == 1


@pytest.mark.parametrize(
    ("times", "ends"), [pytest.param(2, False, marks=pytest.mark.slow(alone=False)), (0.5, True)]
)
async def test_a_store_beyond_its_size_limit_ends_the_worker_with_one_line(times, ends):
    harness = filled_harness()
    first = await harness.until_end(**LITTLE_MEMORY)
    n_bytes = min(view.state_bytes for view in first.snapshot)
    states, limit = MemoryStateDirectory(), int(n_bytes * times)
    try:
        await run(harness, states, max_store_bytes=limit)
        ended = ""
    except StateUnusable as error:
        ended = str(error)
    assert bool(ended) == ends
    assert not ended or re.fullmatch(
        rf"The state of task [01] takes \d+ bytes, more than max_store_bytes \({limit}\) allows\. "
        r"Raise that limit, or keep queries open for less time \(retention_ms\)\.",
        ended,
    )
    await run(harness, states)  # nothing is lost, once there is room


async def test_a_store_that_stays_damaged_ends_the_worker():
    harness = filled_harness()

    class AlwaysDamagedDirectory(MemoryStateDirectory):
        def open(self, task: int) -> MemoryStateStore:
            raise StateDamaged("never any good")

        def quarantine(self, task: int) -> str:
            return "nowhere"

    with pytest.raises(StateDamaged, match="cannot be read either"):
        await finished(harness.worker(states=AlwaysDamagedDirectory()).run(until_end=True))


@pytest.mark.slow
async def test_damage_found_during_a_rebuild_is_repaired():
    harness = filled_harness(40)
    await run(harness, MemoryStateDirectory())  # leaves checkpoints, and no disk
    append_rest(harness, 40)
    logs = await run(harness, FailingDirectory(InjectedError(60, StateDamaged("met at last"))))
    (line,) = quarantine(logs)
    assert line["reason"] == "met at last"


@pytest.mark.slow(alone=False)
async def test_events_of_the_state_are_counted():
    harness = filled_harness()
    states = FailingDirectory(InjectedError(40, StateDamaged("met at last")))
    source = harness.source()
    commit, refusals = source.commit, iter([False])

    async def refused_at_first(commits):
        return next(refusals, True) and await commit(commits)

    source.commit = refused_at_first
    worker = await harness.until_end(source=source, states=states, **LITTLE_MEMORY)
    counts = worker.snapshot.process_counts
    assert counts["rebalances",] == 1  # starting a task again is none
    assert counts["commits", "refused"] == 1
    assert counts["commits", "committed"] > 1
    assert sorted(counts["quarantined_stores", str(task)] for task in (0, 1)) == [0, 1]
    assert all(view.state_bytes and view.memory_tier_bytes for view in worker.snapshot)


# A store that was never complete


@pytest.mark.parametrize("kill_at", [40, 70])
@pytest.mark.slow
async def test_an_interrupted_rebuild_starts_again(kill_at):
    """With batches of another size, other rows would remain and be loaded at the end."""
    harness = filled_harness(40)
    await run(harness, MemoryStateDirectory())  # leaves checkpoints, and no disk
    states = FailingDirectory(InjectedError(kill_at, StateUnusable("killed")))
    with pytest.raises(StateUnusable):
        await run(harness, states, max_poll_records=5)
    assert any(wire.HEAD not in store.all_rows("meta") for store in states.stores.values())
    await run(harness, states, max_poll_records=5_000)
    append_rest(harness, 40)
    assert not quarantine(await run(harness, states, max_poll_records=50))


# Checkpoint records that cannot be used


@pytest.mark.slow(alone=False)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"{", "cannot be read"),
        (b'{"format": 1}', f"its format is 1, and this version reads {checkpoint.FORMAT}"),
    ],
)
async def test_an_unreadable_checkpoint_is_logged_and_the_task_is_rebuilt(value, message):
    harness = filled_harness()
    await run(harness, MemoryStateDirectory())
    append_rest(harness)
    for task in (0, 1):
        (*_, last) = harness.broker.output("checkpoints", task)
        harness.broker.write(("checkpoints", task), [last._replace(value=value)])
    logs = await run(harness, MemoryStateDirectory())
    lines = [line for line in logs if line["event"] == "checkpoint_unreadable"]
    assert {line["task"] for line in lines} == {0, 1}
    assert all(message in str(line["error"]) for line in lines)

"""Snapshots of stores: written at intervals, and fetched for tasks without a recent store.

A fetched snapshot is a store that is behind, like the store of a worker that was stopped: it is
checked and catches up like any other. Threads copy and transfer; every failure is logged and
counted, and the task continues without the snapshot.
"""

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final, Protocol, TypeVar

import structlog
from msgspec import Struct, field

from evaluator.core.event_time.clock import seconds_of
from evaluator.core.types.records import LOGS, Log
from evaluator.exposition.snapshot import StoreSnapshot
from evaluator.ports import StateUnusable
from evaluator.wire.state.snapshots import Manifest, SnapshotFailed
from evaluator.wire.state.task_rows import FORMAT, head_from
from evaluator.worker.task import Task

MUCH_OLDER: Final = 200_000
"""Offsets of both logs behind the group, or a snapshot, at which a store is replaced."""
FEW: Final = 20_000
"""Offsets that a snapshot may lack for RARELY intervals: each one ends small files of a store."""
RARELY: Final = 12
STALLED_SECONDS: Final = 120.0
"""A fetch without a whole file in this time is given up."""
MAX_FETCHES: Final = 2
"""Fetches that run at a time; the others wait."""
_MAX_REMEMBERED: Final = 1_000
_STORE: Final = "store"

T = TypeVar("T")

log = structlog.get_logger(__name__)


class CopiedStates(Protocol):
    """A StateDirectory whose stores are folders of files; raises StateUnusable."""

    def workspace(self) -> Path:
        """A new empty folder on the medium of the stores; the caller deletes it."""

    def copy(self, task: int, folder: Path) -> bytes | None:
        """Copies an open store into a new *folder* as of a commit, and returns its row `head`.

        Threads may call it.
        """

    def adopt(self, task: int, folder: Path) -> None:
        """Moves *folder* to the place of a closed store, which comes back in a quarantine of it."""

    def keep(self, task: int) -> None:
        """Deletes the store that `adopt` replaced: the new one was checked."""


class SnapshotStore(Protocol):
    """Snapshots of the stores of tasks. A place is the path of those of one task and meaning.

    Threads call it. Every method raises SnapshotFailed, and calls *check* between two files, which
    may raise it too.
    """

    def manifests(self, place: str) -> list[Manifest]:
        """The readable manifests among the furthest ones, furthest first."""

    def fetch(
        self, place: str, manifest: Manifest, folder: Path, check: Callable[[], None]
    ) -> None:
        """Copies the files of a snapshot into a new *folder*; their hashes are correct."""

    def write(
        self, place: str, folder: Path, positions: Mapping[Log, int], check: Callable[[], None]
    ) -> tuple[Manifest, int]:
        """Writes the files of a store, then its manifest; returns it and the bytes written.

        Deletes files that two later manifests do not need.
        """


class Stopped(SnapshotFailed):
    """The transfer was given up."""


class _Fetch(Struct, eq=False):
    """A fetch; its thread, which begins when there is room, puts the store into *folder*."""

    folder: Path
    call: "Callable[[_Fetch], Manifest | None]"
    begun: bool = False
    started_at: float = field(default_factory=time.monotonic)
    progress_at: float = field(default_factory=time.monotonic)
    given_up: Event = field(default_factory=Event)
    failures: list[SnapshotFailed] = field(default_factory=list)  # of later snapshots
    outcome: "Future[Manifest | None]" = field(default_factory=Future)

    def check(self) -> None:
        """Raises Stopped if the fetch was given up."""
        if self.given_up.is_set():
            raise Stopped("it was given up")
        self.progress_at = time.monotonic()

    def begin(self) -> None:
        """Begins its thread."""
        self.begun, self.progress_at = True, time.monotonic()
        in_thread(partial(self.call, self), self.outcome)

    def give_up(self) -> None:
        """Ends the fetch at its next file; its thread then deletes the folder."""
        self.given_up.set()
        if not self.begun:
            self.outcome.cancel()
        self.outcome.add_done_callback(lambda _: shutil.rmtree(self.folder, ignore_errors=True))


class StoreSnapshots:
    """The snapshots of the tasks of a worker. Its methods are called by the loop.

    Args:
        store: the snapshots.
        states: the stores.
        interval_ms: between two snapshots of a task.
    """

    def __init__(
        self, store: SnapshotStore, states: CopiedStates, *, interval_ms: int, fingerprint: str
    ) -> None:
        self._store = store
        self._states = states
        self._interval = seconds_of(interval_ms)
        self._fingerprint = fingerprint
        self.counts: Counter[tuple[str, ...]] = Counter(
            {
                **{("snapshot_failures", operation): 0 for operation in ("write", "fetch")},
                **{("snapshot_bytes", direction): 0 for direction in ("written", "fetched")},
            }
        )
        self.written: dict[int, StoreSnapshot] = {}
        self._due_at: dict[int, float] = {}
        self._last: dict[int, tuple[int, float]] = {}  # progress and time of the last snapshot
        self._writing: tuple[int, float, Future[tuple[Manifest, int] | None]] | None = None
        self._fetches: dict[int, _Fetch] = {}
        self._ended: dict[int, tuple[Path, Manifest] | None] = {}
        self._used: set[tuple[int, int]] = set()  # a fetched store may be found damaged later
        self._stopping = Event()

    # Writing

    def write_due(self, tasks: Mapping[int, Task], cluster: str) -> None:
        """Begins the next snapshot that is due, one at a time; *tasks* have committed."""
        for number in self._due_at.keys() - tasks.keys():
            for known in (self._due_at, self._last, self.written):
                known.pop(number, None)
        if self._writing is not None:
            self._finish_write(tasks)
            return
        now, wall_ms = time.monotonic(), time.time_ns() // 1_000_000
        for number in tasks:
            self._due_at.setdefault(number, now)
            self.written.setdefault(number, StoreSnapshot(wall_ms, 0))
        for number in sorted(tasks, key=lambda each: self._due_at[each]):
            if self._due_at[number] > now:
                return
            if tasks[number].restoring:
                continue
            self._due_at[number] = now + self._interval
            if self._suffices(number, tasks[number], now):
                self.written[number] = self.written[number]._replace(written_ms=wall_ms)
                continue
            self._writing = number, now, in_thread(partial(self._write, number, cluster))
            return

    def _suffices(self, number: int, task: Task, now: float) -> bool:
        """Whether the last snapshot of a task is current, or lacks few records for a short time."""
        progress, at = self._last.get(number, (-FEW, 0.0))
        missing = sum(task.positions.values()) - progress
        return missing == 0 or (0 < missing < FEW and now < at + RARELY * self._interval)

    def _write(self, number: int, cluster: str) -> tuple[Manifest, int] | None:
        """Copies a store and writes the copy; None for a store that was never complete."""
        folder = self._states.workspace()
        try:
            row = self._states.copy(number, folder / _STORE)
            if row is None:
                return None
            head = head_from(row)
            ids = {name: log_id.topic_id for name, log_id in head.origin.logs.items()}
            place = place_of(cluster, ids, head.origin.ends_lost, number, self._fingerprint)
            return self._store.write(place, folder / _STORE, head.positions, self._check)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped("the worker stops")

    def _finish_write(self, tasks: Mapping[int, Task]) -> None:
        if self._writing is None or not self._writing[2].done():
            return
        number, started_at, outcome = self._writing
        self._writing = None
        try:
            done = outcome.result()
        except Exception as error:  # noqa: BLE001 - no failure of a snapshot ends the worker
            if number in tasks:  # else its store was closed
                self._failed("write", number, error)
            return
        if done is None or number not in tasks:
            return
        manifest, n_written = done
        self._last[number] = manifest.progress, started_at
        self.written[number] = StoreSnapshot(time.time_ns() // 1_000_000, manifest.n_bytes)
        self.counts["snapshot_bytes", "written"] += n_written
        log.info(
            "snapshot_written",
            task=number,
            positions=dict(manifest.positions),
            bytes=manifest.n_bytes,
            bytes_written=n_written,
            seconds=round(time.monotonic() - started_at, 3),
        )

    # Fetching

    @property
    def fetching(self) -> list[int]:
        """The tasks whose snapshots are being fetched."""
        return sorted(self._fetches)

    def adopt(self, numbers: Collection[int]) -> dict[int, bool]:
        """Puts fetched stores into their places; those of other tasks are deleted.

        Returns the tasks whose fetches have ended, and whether their stores are fetched ones.
        """
        ended, self._ended = self._ended, {}
        adopted = dict.fromkeys(ended.keys() & set(numbers), False)
        for number, fetched in ended.items():
            if fetched is not None:
                if number in adopted:
                    adopted[number] = self._adopt(number, *fetched)
                shutil.rmtree(fetched[0], ignore_errors=True)
        return adopted

    def _adopt(self, number: int, folder: Path, manifest: Manifest) -> bool:
        try:
            self._states.adopt(number, folder / _STORE)
        except StateUnusable as error:
            self._failed("fetch", number, error)
            return False
        if len(self._used) >= _MAX_REMEMBERED:
            self._used.clear()
        self._used.add((number, manifest.progress))
        return True

    def keep(self, numbers: Collection[int]) -> None:
        """Deletes the stores that were replaced by those of these tasks, which were checked.

        Raises StateUnusable.
        """
        for number in numbers:
            self._states.keep(number)

    def begin_fetch(
        self, number: int, place: str, *, least: int, bounds: Mapping[Log, tuple[int, int]]
    ) -> bool:
        """Begins to fetch a snapshot of a task, or continues; False if that is not possible.

        Args:
            number: of the task.
            place: of its snapshots.
            least: smallest sum of the positions of a useful one.
            bounds: positions that the logs have, first and last.
        """
        if number in self._fetches:
            return True
        try:
            call = partial(self._fetch, number, place, least, bounds)
            self._fetches[number] = _Fetch(self._states.workspace(), call)
        except StateUnusable as error:
            self._failed("fetch", number, error)
            return False
        self._begin_waiting()
        return True

    def _begin_waiting(self) -> None:
        waiting = [each for each in self._fetches.values() if not each.begun]
        for fetch in waiting[: MAX_FETCHES - (len(self._fetches) - len(waiting))]:
            fetch.begin()

    def _fetch(
        self, number: int, place: str, least: int, bounds: Mapping[Log, tuple[int, int]], to: _Fetch
    ) -> Manifest | None:
        """Fetches the furthest useful snapshot, else an earlier one; None if there is none."""
        for manifest in self._store.manifests(place):
            exists = all(
                bounds[name][0] <= manifest.positions[name] <= bounds[name][1] for name in LOGS
            )
            if manifest.progress < least or not exists or (number, manifest.progress) in self._used:
                continue
            try:
                self._store.fetch(place, manifest, to.folder / _STORE, to.check)
            except Stopped:
                raise
            except SnapshotFailed as error:
                to.failures.append(error)
                shutil.rmtree(to.folder / _STORE, ignore_errors=True)
            else:
                return manifest
        return None

    def give_up_others(self, numbers: Collection[int]) -> None:
        """Gives up the fetches of all tasks but these."""
        for number in self._fetches.keys() - set(numbers):
            self._fetches.pop(number).give_up()

    def ended(self) -> bool:
        """Whether fetches have ended since the last call: their tasks can be opened."""
        now = time.monotonic()
        for number, fetch in list(self._fetches.items()):
            if fetch.outcome.done():
                self._ended[number] = self._fetched(number, fetch)
            elif fetch.begun and now - fetch.progress_at > STALLED_SECONDS:
                fetch.give_up()
                stalled = Stopped(f"no file was fetched in {STALLED_SECONDS:.0f} s")
                self._failed("fetch", number, stalled)
                self._ended[number] = None
            if number in self._ended:
                del self._fetches[number]
        self._begin_waiting()
        return bool(self._ended)

    def _fetched(self, number: int, fetch: _Fetch) -> tuple[Path, Manifest] | None:
        """The folder and manifest of a fetch that has ended, None without a snapshot."""
        manifest, failures = None, list[Exception](fetch.failures)
        try:
            manifest = fetch.outcome.result()
        except Exception as error:  # noqa: BLE001 - no failure of a snapshot ends the worker
            failures.append(error)
        for failure in failures:
            self._failed("fetch", number, failure)
        if manifest is None:
            shutil.rmtree(fetch.folder, ignore_errors=True)
            return None
        self.counts["snapshot_bytes", "fetched"] += manifest.n_bytes
        log.info(
            "snapshot_fetched",
            task=number,
            positions=dict(manifest.positions),
            bytes=manifest.n_bytes,
            seconds=round(time.monotonic() - fetch.started_at, 3),
        )
        return fetch.folder, manifest

    def close(self) -> None:
        """Ends all transfers at their next file, without waiting for them."""
        self._stopping.set()
        self.give_up_others(())

    def _failed(self, operation: str, number: int, error: Exception) -> None:
        self.counts["snapshot_failures", operation] += 1
        log.warning("snapshot_failed", task=number, operation=operation, error=str(error))


def place_of(
    cluster: str, topic_ids: Mapping[Log, str | None], ends_lost: int, task: int, fingerprint: str
) -> str:
    """The path of the snapshots of a task; others for topics that were recreated, and per format.

    Raises SnapshotFailed if the ids of the topics are not known.
    """
    ids = [topic_ids.get(name) for name in LOGS]
    if None in ids:
        raise SnapshotFailed("the broker gives no ids of topics, so they cannot be told apart")
    logs = "+".join([*map(str, ids), *([str(ends_lost)] if ends_lost else [])])
    parts = (cluster or "_", logs, str(task), f"{fingerprint}-{FORMAT}")
    return "/".join(re.sub(r"[^A-Za-z0-9_=+-]", "_", part) for part in parts)


def in_thread(call: Callable[[], T], outcome: "Future[T] | None" = None) -> "Future[T]":
    """The result of *call*, in a thread that does not delay the end of the process."""
    outcome = Future() if outcome is None else outcome

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            outcome.set_exception(error)

    Thread(target=run, name="snapshots", daemon=True).start()
    return outcome

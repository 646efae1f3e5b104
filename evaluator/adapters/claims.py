"""Progress of the stores of a state directory, for the group that assigns tasks.

It is also in a file beside the stores, because a worker joins its group before it opens them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from evaluator.core.types.records import Log
from evaluator.exposition.snapshot import Snapshot
from evaluator.wire.reading import UNREADABLE, Count

INTERVAL_SECONDS: Final = 10.0


class _File(msgspec.Struct):
    """The stores of a directory: fingerprint, topic ids by log, and claims by task."""

    fingerprint: str
    topics: dict[Log, str]
    claims: dict[Count, Count]
    format: Literal[1] = 1


class StoreClaims:
    """The sum of both positions of each task, as of its last commit in this directory.

    Stores of another *fingerprint* do not count. *snapshot* has the tasks that this process owns.
    """

    def __init__(self, state_dir: Path, fingerprint: str, snapshot: Callable[[], Snapshot]) -> None:
        self._path = state_dir / "claims.json"
        self._fingerprint = fingerprint
        self._snapshot = snapshot
        self._stored: dict[int, int] | None = None
        self._topic_ids: Mapping[Log, str] = {}

    def of(self, topic_ids: Mapping[Log, str]) -> dict[int, int]:
        """The claims on tasks of these topics; 0 is no claim."""
        if self._stored is None or topic_ids != self._topic_ids:
            self._topic_ids, self._stored = topic_ids, self._read(topic_ids)
        self._update()
        now = {view.task: sum(view.positions.values()) for view in self._snapshot()}
        return {task: progress for task, progress in (self._stored | now).items() if progress > 0}

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Writes the file at intervals in the background, and at the end."""
        keeping = asyncio.create_task(self._keep(), name="claims")
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
            self._write()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self._write()

    def _update(self) -> None:
        """Adds the tasks whose stores are complete."""
        if self._stored is not None:
            self._stored |= {
                view.task: sum(view.positions.values())
                for view in self._snapshot()
                if not view.restoring
            }

    def _read(self, topic_ids: Mapping[Log, str]) -> dict[int, int]:
        """Claims of the file for stores that exist; none of other settings, or if damaged."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except (OSError, *UNREADABLE):
            return {}
        if (found.fingerprint, found.topics) != (self._fingerprint, topic_ids):
            return {}
        folder = self._path.parent
        return {n: at for n, at in found.claims.items() if (folder / f"task-{n}").is_dir()}

    def _write(self) -> None:
        """Replaces the file. A full disk is an error of the stores, not of this file."""
        self._update()
        if self._stored is None:
            return
        file = _File(self._fingerprint, dict(self._topic_ids), self._stored)
        replacement = self._path.with_suffix(".new")
        with suppress(OSError):
            replacement.write_bytes(msgspec.json.encode(file))
            replacement.replace(self._path)

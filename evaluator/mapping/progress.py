"""Commits of the members of a mapping group: offsets with clocks and ids of the topics."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog
from msgspec import Struct

from evaluator.core.types.records import Log
from evaluator.mapping.backlog import NO_CLOCK
from evaluator.ports import Committed, Partition, Progress, Source, SourceUnusable

UNLIMITED: Final = float("inf")
WATCH_SECONDS: Final = 10.0
"""Interval at which the ids of the topics are requested while they are read."""

log = structlog.get_logger(__name__)


class Note(Struct, frozen=True):
    """The metadata of a commit.

    `at_ms` is the wall clock. After a `drained` commit nothing was written, so nothing is repeated.
    """

    clock_ms: int = NO_CLOCK
    at_ms: int | None = None
    drained: bool = False
    topic_id: str | None = None

    @property
    def text(self) -> str:
        """The note as metadata."""
        return msgspec.json.encode(self).decode()


def note_of(committed: Committed | None) -> Note:
    """The note of a commit; an empty one if another program has committed."""
    try:
        return msgspec.json.decode(committed.metadata if committed else "", type=Note)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Note()


def behind_ms(progress: Mapping[Partition, Progress], ends: Mapping[Partition, int]) -> float:
    """The earliest clock of the partitions that are not committed up to these *ends*."""
    clocks = [
        note_of(each.committed).clock_ms
        for partition, each in progress.items()
        if (each.committed.offset if each.committed else 0) < ends.get(partition, UNLIMITED)
    ]
    return min(clocks, default=UNLIMITED)


class RepeatRules(Struct, frozen=True):
    """When a group may continue, so that repeated messages count as duplicates."""

    key_reserved_ms: int
    accept_repeats: bool = False

    def require(
        self,
        partition: Partition,
        place: str,
        committed: Committed | None,
        *,
        end: int,
        now_ms: int,
    ) -> None:
        """Raises SourceUnusable if records after a commit may have been written too long ago.

        If the commit is beyond the *end*, these are all records of the log.
        """
        if committed is None or self.accept_repeats:
            return
        if committed.offset > end:
            raise SourceUnusable(
                f"The group has committed offset {committed.offset} of {place}-{partition[1]}, "
                f"beyond its end {end}: the log has lost its end, and it is unknown which of its "
                "records were written. Start with --accept-repeats to write all of them, perhaps "
                "again, or move the offsets of the group to the first that was not written."
            )
        note = note_of(committed)
        if note.at_ms is None or note.drained:
            return
        age_ms = now_ms - note.at_ms
        if age_ms > self.key_reserved_ms:
            raise SourceUnusable(
                f"Records of {place}-{partition[1]} from offset {committed.offset} on may have "
                f"been written {age_ms} ms ago already. The evaluator reserves their keys for "
                f"{self.key_reserved_ms} ms, so it would count them twice. Start with "
                "--accept-repeats if it may, or move the offsets of the group past them."
            )

    def require_begin(self, group: str, *, has_commits: bool, has_written: bool) -> None:
        """Raises SourceUnusable if a group without offsets would write to topics with records."""
        if has_written and not has_commits and not self.accept_repeats:
            raise SourceUnusable(
                f"The topics of --to have records, and group {group} has no offsets, so all "
                "records would be written, perhaps again. Start with --accept-repeats if they "
                "may, or name new topics."
            )


class TopicIds:
    """The ids of the foreign topics. A topic that was deleted and recreated has another one."""

    def __init__(self, source: Source, topic_names: Mapping[Log, str]) -> None:
        self.ids: dict[Log, str] = {}
        self.n_recreated: Counter[Log] = Counter()
        """Partitions whose committed offset is of an earlier topic."""
        self._source, self._topic_names = source, topic_names
        self._watched_at = 0.0

    async def watch(self, *, at_once: bool = False) -> None:
        """Requests the ids, once per WATCH_SECONDS. Raises SourceUnusable if one has changed."""
        now = time.monotonic()
        if not at_once and now - self._watched_at < WATCH_SECONDS:
            return
        self._watched_at = now
        for name, topic_id in (await self._source.topic_ids()).items():
            before = self.ids.setdefault(name, topic_id)
            if before != topic_id:
                raise SourceUnusable(
                    f"Topic {self._topic_names[name]} was recreated while it was read: its id was "
                    f"{before} and is {topic_id}. Restart to read it from its beginning."
                )

    def commit_of_same(self, partition: Partition, commit: Committed | None) -> Committed | None:
        """The commit; None, with a warning, if it is of an earlier topic of the same name."""
        name, number = partition
        before, now = note_of(commit).topic_id, self.ids.get(name)
        if commit is None or None in {before, now} or before == now:
            return commit
        self.n_recreated[name] += 1
        log.warning(
            "mapper_begins_anew",
            topic=self._topic_names[name],
            partition=number,
            committed=commit.offset,
            reason=f"the topic was recreated: its id is {now}, not {before}",
        )
        return None

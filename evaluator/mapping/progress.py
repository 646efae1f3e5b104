"""What members of a mapping group commit: offsets, and with them the clocks of the partitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from evaluator.mapping.backlog import NO_CLOCK
from evaluator.ports import Committed, Partition, Progress, SourceUnusable

UNLIMITED: Final = float("inf")


class Note(msgspec.Struct, frozen=True):
    """The metadata of a commit.

    `at_ms` is the wall clock. After a `drained` commit nothing was written, so nothing is repeated.
    """

    clock_ms: int = NO_CLOCK
    at_ms: int | None = None
    drained: bool = False

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


def behind_ms(progress: Mapping[Partition, Progress], *, count_all: bool) -> float:
    """The clock of the partition that is furthest behind, unless at its end or *count_all*."""
    clocks = [
        note_of(each.committed).clock_ms
        for each in progress.values()
        if count_all or not each.is_at_end
    ]
    return min(clocks, default=UNLIMITED)


@dataclass(frozen=True, slots=True)
class RepeatRules:
    """When a group may continue, so that repeated messages count as duplicates."""

    key_reserved_ms: int
    accept_repeats: bool = False

    def require(
        self, partition: Partition, place: str, committed: Committed | None, *, now_ms: int
    ) -> None:
        """Raises SourceUnusable if records after a commit may have been written too long ago."""
        note = note_of(committed)
        if committed is None or note.at_ms is None or note.drained or self.accept_repeats:
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

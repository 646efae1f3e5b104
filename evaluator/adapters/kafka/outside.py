"""Positions that their logs do not hold: what they mean is said, and they are counted."""

from collections import Counter
from collections.abc import Mapping

import structlog

from evaluator.core.types.records import Log
from evaluator.ports import Committed, Partition, Side, SourceUnusable

log = structlog.get_logger()


class Outside:
    """Compares positions with what the logs hold.

    `counts` are the positions that were outside, `lost` the records that were gone before them:
    each position of a partition counts once.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[Log, Side]] = Counter()
        self.lost: Counter[Log] = Counter()
        self._begins: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._known: set[tuple[Partition, int]] = set()

    def note(self, bounds: Mapping[Partition, int], *, ends: bool) -> None:
        """Where logs begin or end just now."""
        (self._ends if ends else self._begins).update(bounds)

    def compare(self, committed: Mapping[Partition, Committed]) -> None:
        """Looks at what a group has committed; says what is gone before it was read."""
        for partition, mark in committed.items():
            side, n_lost = self._outside(partition, mark.offset)
            if side is None or (partition, mark.offset) in self._known:
                continue
            self._count(partition, mark.offset, side, n_lost)
            if n_lost:
                name, number = partition
                log.warning(
                    "input_lost",
                    log=name,
                    partition=number,
                    records=n_lost,
                    committed=mark.offset,
                    first=self._begins[partition],
                )

    def unusable(self, partition: Partition, topic: str, offset: int) -> SourceUnusable:
        """A position that was to be read next just now: what there is instead, and what to do."""
        side, n_lost = self._outside(partition, offset)
        self._count(partition, offset, side or "beyond", n_lost)
        begin, end = self._begins.get(partition), self._ends.get(partition)
        bounds = "" if begin is None or end is None else f", which holds {begin} to {end}"
        if side == "before":
            why = (
                f"{n_lost} records have expired before they were read. Restart to go on with the "
                "first one that is left, and give the topic a longer retention.ms"
            )
        else:
            why = (
                "it was truncated, or the topic was recreated. Restart to read it from its "
                "beginning, and look at the broker if nobody recreated it"
            )
        return SourceUnusable(
            f"Offset {offset} of {topic}-{partition[1]} is to be read next and not in its "
            f"log{bounds}: {why}."
        )

    def _outside(self, partition: Partition, offset: int) -> tuple[Side | None, int]:
        """On which side of its log an offset lies, and how many records are gone at it."""
        begin, end = self._begins.get(partition), self._ends.get(partition)
        if begin is not None and offset < begin:
            return "before", begin - offset
        if end is not None and offset > end:
            return "beyond", 0
        return None, 0

    def _count(self, partition: Partition, offset: int, side: Side, n_lost: int) -> None:
        self._known.add((partition, offset))
        self.counts[partition[0], side] += 1
        self.lost[partition[0]] += n_lost

"""Whether what somebody has read comes from the logs that are there now, or from earlier ones.

A topic may be deleted and made again, and a log may lose its end in an unclean election of a leader
and grow again. Offsets then name other records than those that were read.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from evaluator.core.join.changes import LogMark
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import Partition, Source, SourceUnusable
from evaluator.wire.state.origin import last_record

WATCH_SECONDS: Final = 10.0
"""Between two looks at the topics while they are read."""

K = TypeVar("K")


class Claim(NamedTuple):
    """A *partition* was read up to *position*, and is known by *mark*."""

    partition: Partition
    position: int
    mark: LogMark


class Doubt(NamedTuple):
    """Why a claim is not about the log that is there. `lost_end`: it is of the same topic."""

    reason: str
    lost_end: bool


class Logs:
    """The logs as they are: ids of the topics, and where partitions begin and end."""

    def __init__(self, source: Source, topic_names: Mapping[Log, str]) -> None:
        self._source = source
        self._topic_names = topic_names
        self._asked_at = 0.0
        self.topic_ids: dict[Log, str] = {}
        self.begins: Mapping[Partition, int] = {}
        self.ends: Mapping[Partition, int] = {}

    async def look(self, partitions: Sequence[Partition], *, reading: bool) -> None:
        """Asks for everything. Raises as `watch` does while tasks are being read."""
        if not reading:
            self.topic_ids = {}
        await self.watch(at_once=True)
        self.begins = await self._source.beginning(partitions)
        self.ends = await self._source.end(partitions)

    async def watch(self, *, at_once: bool = False) -> None:
        """Asks for the ids and partition counts of the topics, now and then.

        Raises SourceUnusable if a topic was recreated, or has more partitions, since `look`.
        """
        now = time.monotonic()
        if not at_once and now - self._asked_at < WATCH_SECONDS:
            return
        self._asked_at = now
        for log, topic_id in (await self._source.topic_ids()).items():
            before = self.topic_ids.setdefault(log, topic_id)
            if before != topic_id:
                raise SourceUnusable(
                    f"Topic {self._topic_names[log]} was recreated while it was read: its id was "
                    f"{before} and is {topic_id}. Restart: the state of its tasks is quarantined, "
                    "and they begin with the first records of both inputs. Stop the workers "
                    "before you recreate an input."
                )

    async def doubts(self, claims: Mapping[K, Claim]) -> dict[K, Doubt]:
        """Those of the claims that are about other logs; the records that they name are read.

        A record that has expired, is skipped or cannot be read proves nothing.
        """
        found = {each: self._doubt_at_once(claim) for each, claim in claims.items()}
        places = {
            each: (claim.partition, claim.mark.last.offset)
            for each, claim in claims.items()
            if found[each] is None
            and claim.mark.last is not None
            and claim.mark.last.offset >= self.begins[claim.partition]
        }
        records = await self._source.records_at(set(places.values())) if places else {}
        begins = self.begins
        if records.keys() < set(places.values()):  # what has expired meanwhile proves nothing
            begins = await self._source.beginning([partition for partition, _ in places.values()])
        for each, (partition, offset) in places.items():
            there = records.get((partition, offset), ())
            if there is None:
                continue
            known = last_record(there) if there else None
            if known != claims[each].mark.last and offset >= begins[partition]:
                log, number = partition
                reason = f"record {offset} of {log}-{number} is not the one that was read"
                found[each] = Doubt(reason, lost_end=True)
        return {each: doubt for each, doubt in found.items() if doubt is not None}

    def _doubt_at_once(self, claim: Claim) -> Doubt | None:
        """Doubts that ids and ends show."""
        (log, _), position, (topic_id, last) = claim
        now = self.topic_ids.get(log)
        if None not in {now, topic_id} and now != topic_id:
            return Doubt(f"topic {log} was recreated: its id is {now}, not {topic_id}", False)
        end = self.ends[claim.partition]
        if position > end:
            reason = f"its position in {log} is {position}, behind the end {end}"
            return Doubt(reason, lost_end=last is not None)
        if last is not None and last.offset >= position:
            return Doubt(f"record {last.offset} of {log} is behind its position", lost_end=False)
        return None


def claims_of(
    number: int, positions: Mapping[Log, int], marks: Mapping[Log, LogMark]
) -> dict[tuple[int, Log], Claim]:
    """The logs of a task's positions, as its state has them."""
    return {
        (number, log): Claim((log, number), positions[log], marks[log])
        for log in LOGS
        if log in positions
    }

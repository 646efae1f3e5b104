"""Compares stored positions with the current logs. A topic may be deleted and recreated, and a log
may lose its end in an unclean leader election and grow again. Its offsets are then those of other
records.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from evaluator.core.join.changes import LastRecord, LogId, Origin
from evaluator.core.types.records import LOGS, Log
from evaluator.ports import UNKNOWN_END, Committed, Partition, RecordAt, Source, SourceUnusable
from evaluator.wire.state.origin import commit_note, last_record

WATCH_SECONDS: Final = 10.0
"""Interval at which the topics are checked while they are read."""

ReadState = tuple[Mapping[Log, int], Origin]
"""Positions of a state, and the identity of its logs."""

log = structlog.get_logger(__name__)


class Mismatch(NamedTuple):
    """The reason why a position does not belong to its log. `lost_end`: the topic is the same."""

    reason: str
    lost_end: bool


class Origins:
    """The current input logs: topic ids, beginnings and ends."""

    def __init__(
        self, source: Source, topic_names: Mapping[Log, str], fingerprint: str = ""
    ) -> None:
        self._source = source
        self._topic_names = topic_names
        self._fingerprint = fingerprint
        self._first_ends: Mapping[Partition, int] = {}
        self._first_committed: Mapping[Partition, Committed] = {}
        self._checked_at = 0.0
        self.topic_ids: dict[Log, str] = {}
        self.begins: Mapping[Partition, int] = {}
        self.ends: Mapping[Partition, int] = {}
        self.ends_lost: Counter[int] = Counter()
        """How often a log of each task has lost an end that was read, as far as known."""

    async def refresh(self, partitions: Sequence[Partition], *, reading: bool) -> None:
        """Requests ids, beginnings and ends. While tasks are read, raises as `watch`."""
        self.ends_lost.clear()
        if not reading:
            self.topic_ids = {}
        await self.watch(at_once=True)
        self.begins = await self._source.beginning(partitions)
        self.ends = await self._source.end(partitions)

    async def watch(self, *, at_once: bool = False) -> None:
        """Requests topic ids and partition counts, once per WATCH_SECONDS.

        Raises SourceUnusable if a topic was recreated, or has more partitions, since `refresh`.
        """
        now = time.monotonic()
        if not at_once and now - self._checked_at < WATCH_SECONDS:
            return
        self._checked_at = now
        for name, topic_id in (await self._source.topic_ids()).items():
            before = self.topic_ids.setdefault(name, topic_id)
            if before != topic_id:
                raise SourceUnusable(
                    f"Topic {self._topic_names[name]} was recreated while it was read: its id was "
                    f"{before} and is {topic_id}. Restart: the state of its tasks is quarantined, "
                    "and they begin with the first records of both inputs. Stop the workers "
                    "before you recreate an input."
                )

    async def committed(self, partitions: Sequence[Partition]) -> dict[Partition, Committed]:
        """Offsets that the group has committed, each with the fingerprint as its metadata.

        Tasks with commits of other logs are excluded.
        """
        found = await self._source.committed(partitions)
        notes = {each: commit_note(commit.metadata) for each, commit in found.items()}
        states: dict[int, tuple[dict[Log, int], Origin]] = {}
        for (name, number), note in notes.items():
            positions, origin = states.setdefault(number, ({}, Origin()))
            positions[name] = found[name, number].offset
            origin.logs[name] = note.log_id
            origin.ends_lost = max(origin.ends_lost, note.ends_lost)
        mismatches = await self.mismatches(states)
        for number, reason in mismatches.items():
            positions = states[number][0]
            if any(at > self.ends[name, number] for name, at in positions.items()):
                log.warning("commit_beyond_end", task=number, committed=positions)
            else:
                log.warning("commit_of_other_logs", task=number, reason=reason)
        return {
            each: Committed(commit.offset, notes[each].fingerprint)
            for each, commit in found.items()
            if each[1] not in mismatches
        }

    async def note_start(self) -> None:
        """Notes the ends, and the commits of the group, before the first assignment."""
        n_tasks = (await self._source.place()).partitions
        every = [(name, number) for number in range(n_tasks) for name in LOGS]
        self._first_ends = await self._source.end(every)
        found = await self._source.committed(every)
        self._first_committed = {
            each: Committed(commit.offset, commit_note(commit.metadata).fingerprint)
            for each, commit in found.items()
        }

    def finished(
        self, committed: Mapping[Partition, Committed], taken: Collection[int] | None
    ) -> set[int]:
        """The tasks that the group has committed up to the first ends, but those *taken* before.

        With `--until-end` they are not taken over from a member that has left: without its stores
        the inputs would be read again. The first assignment, without any *taken*, may be late:
        then they are the tasks that others have finished since the start.
        """

        def is_at_end(partition: Partition) -> bool:
            commit = committed.get(partition, Committed(-1, ""))
            return commit.metadata == self._fingerprint and commit.offset >= self._first_ends.get(
                partition, UNKNOWN_END
            )

        first = self._first_committed
        return {
            number
            for number in {number for _, number in committed}.difference(taken or ())
            if all(is_at_end((name, number)) for name in LOGS)
            and (
                taken is not None
                or any(committed[name, number] != first.get((name, number)) for name in LOGS)
            )
        }

    async def mismatches(self, states: Mapping[int, ReadState]) -> dict[int, str]:
        """Reasons, by task, of states that were read from other logs.

        Updates `ends_lost`.
        """
        found: dict[Partition, Mismatch] = {}
        last: dict[RecordAt, LastRecord] = {}
        for number, (positions, origin) in states.items():
            for name, position in positions.items():
                partition, log_id = (name, number), origin.logs[name]
                mismatch = self._compare_ends(partition, position, log_id)
                if mismatch is not None:
                    found[partition] = mismatch
                elif log_id.last is not None and log_id.last.offset >= self.begins[partition]:
                    last[partition, log_id.last.offset] = log_id.last
        found |= await self._compare_records(last)
        reasons: dict[int, str] = {}
        for number, (_, origin) in states.items():
            of_task = [found[name, number] for name in LOGS if (name, number) in found]
            if all(mismatch.lost_end for mismatch in of_task):
                ends_lost = origin.ends_lost + bool(of_task)
                self.ends_lost[number] = max(self.ends_lost[number], ends_lost)
            if of_task:
                reasons[number] = "; ".join(mismatch.reason for mismatch in of_task)
        return reasons

    def _compare_ends(self, partition: Partition, position: int, log_id: LogId) -> Mismatch | None:
        """The mismatch of topic id or end, if any."""
        name, (topic_id, last) = partition[0], log_id
        now, end = self.topic_ids.get(name), self.ends[partition]
        if None not in {now, topic_id} and now != topic_id:
            reason = f"topic {name} was recreated: its id is {now}, not {topic_id}"
            return Mismatch(reason, lost_end=False)
        if position > end:
            reason = f"its position in {name} is {position}, beyond the end {end}"
            return Mismatch(reason, lost_end=last is not None)
        if last is not None and last.offset >= position:
            reason = (
                f"the last record read, at offset {last.offset} of {name}, is not before the "
                f"position {position}"
            )
            return Mismatch(reason, lost_end=False)
        return None

    async def _compare_records(
        self, last: Mapping[RecordAt, LastRecord]
    ) -> dict[Partition, Mismatch]:
        """Mismatches of the last records that were read with the records at their offsets.

        Records that have expired, are skipped or cannot be read are not compared.
        """
        found: dict[Partition, Mismatch] = {}
        records = await self._source.records_at(set(last)) if last else {}
        begins = self.begins
        if records.keys() < last.keys():  # some may have expired since
            begins = await self._source.beginning([partition for partition, _ in last])
        for (partition, offset), known in last.items():
            there = records.get((partition, offset), ())
            if there is None or offset < begins[partition]:
                continue
            if not there or last_record(there) != known:
                name, number = partition
                reason = f"record {offset} of {name}-{number} is not the one that was read"
                found[partition] = Mismatch(reason, lost_end=True)
        return found

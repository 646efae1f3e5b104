"""The loop of `evaluator map`: foreign records to canonical topics, at least once.

Records wait in a backlog for each partition. A record whose timestamp is more than `max_lead_ms`
ahead of the earliest clock of all partitions, also those of other members, is not written yet. A
partition delays no records if it is read up to its end, as requested after they were read.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Mapping
from typing import Final, Protocol

import structlog
from msgspec import Struct

from evaluator.core.types.records import Log
from evaluator.mapping.backlog import Backlog, Decode, Portion
from evaluator.mapping.progress import UNLIMITED, Note, RepeatRules, TopicIds, behind_ms, note_of
from evaluator.mapping.stage import Stage
from evaluator.ports import Committed, Partition, Progress, Sink, Source, SourceUnavailable
from evaluator.waiting import backoff_seconds, is_set_within
from evaluator.wire.outputs.encoding import encode_dead_letters
from evaluator.wire.records import Output, OutputRecord

COMMIT_SECONDS: Final = 0.5
PAUSED_SECONDS: Final = 0.1
"""The same while records wait for other partitions: commits have the clocks."""
REFRESH_SECONDS: Final = 60.0
"""Unchanged positions are committed again after this time, so that the age of a commit is that of
the last process that may have written."""
POLL_MS: Final = 100
MAX_UNACKNOWLEDGED: Final = 8
STOP_TIMEOUT_SECONDS: Final = 8.0
DEAD_AFTER_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


class ForeignSource(Source, Protocol):
    """A member of the mapping group. A log with all records is that of the rankings."""

    @property
    def partitions(self) -> frozenset[Partition]:
        """The partitions of this member."""

    async def progress(self) -> Mapping[Partition, Progress]:
        """The commits and ends of all partitions of the group."""

    async def has_written(self) -> bool:
        """Whether the canonical topics have records."""


class CanonicalSink(Sink, Protocol):
    """The canonical topics and the dead letters."""

    def lane(self, output: Log, key: bytes) -> tuple[Output, int]:
        """The lane for records of a key."""

    def letter_lane(self, partition: int) -> tuple[Output, int]:
        """The lane for dead letters of a partition."""


class Reading(Struct):
    """A partition of this member: its emitted, acknowledged and committed positions."""

    place: tuple[int, int]  # offset and clock after the last emitted record
    acknowledged: tuple[int, int]
    committed: tuple[int, int] | None = None
    backlog: Backlog | None = None

    @property
    def to_commit(self) -> tuple[int, int]:
        """The acknowledged offset and its clock: that of the next record, if it is known.

        Otherwise two members whose next records are both far ahead would wait for each other.
        """
        if self.backlog is None or self.acknowledged != self.place:
            return self.acknowledged
        return self.place[0], self.backlog.head_ms


class MapperSettings(Struct, frozen=True, kw_only=True):
    """Settings of a mapper; see `evaluator.config.settings`."""

    group_id: str
    topic_names: Mapping[Log, str]
    max_lead_ms: int
    repeats: RepeatRules
    max_poll_records: int = 5_000


class Mapper:
    """Maps the records of its partitions until it is stopped.

    *stages* has, for each log of the source, the stages and decoders of the records in it.
    """

    def __init__(
        self,
        source: ForeignSource,
        sink: CanonicalSink,
        stages: Mapping[Log, Mapping[Log, tuple[Stage, Decode]]],
        settings: MapperSettings,
    ) -> None:
        self.readings: dict[Partition, Reading] = {}
        self.counts: Counter[tuple[Log, str]] = Counter()
        """Records by log of the source and outcome."""
        self.n_written: Counter[Log] = Counter()
        self.reasons: Counter[str] = Counter()
        self.last_commit_ms: int | None = None
        self.paused = 0
        """Partitions whose next record has to wait for others."""
        self.topics = TopicIds(source, settings.topic_names)
        self._source, self._sink, self._stages = source, sink, stages
        self._settings = settings
        self._stopping = asyncio.Event()
        self._stop_timeout: asyncio.Timeout | None = None
        self._started = False
        self._generation = 0
        self._unavailable: str | None = "broker unavailable: not connected yet"
        self._emitted: deque[tuple[asyncio.Future[None], dict[Partition, tuple[int, int]]]] = (
            deque()
        )
        self._progress: Mapping[Partition, Progress] = {}
        self._committed_at = self._refreshed_at = 0.0
        self._progress_at = time.monotonic()

    def readiness(self) -> list[str]:
        """Reasons why this member is not ready."""
        if self._unavailable:
            return [self._unavailable]
        return [] if self._generation else ["no partitions assigned by the group yet"]

    def alive(self) -> bool:
        """Whether the loop makes progress; also while the broker is unavailable."""
        return time.monotonic() - self._progress_at < DEAD_AFTER_SECONDS

    def lags(self) -> dict[Partition, int]:
        """The records of each partition that are not written yet, where the end is known."""
        lags = dict[Partition, int]()
        for each, reading in self.readings.items():  # a source may know no new end while it waits
            asked = self._progress[each].end if each in self._progress else 0
            known = self._source.known_end(each)
            if known is not None:
                lags[each] = max(0, known - reading.place[0], asked - reading.place[0])
        return lags

    def stop(self) -> None:
        """Ends `run` after emitted records are acknowledged and committed, or after a timeout."""
        if not self._stopping.is_set() and self._stop_timeout is not None:
            self._stop_timeout.reschedule(asyncio.get_running_loop().time() + STOP_TIMEOUT_SECONDS)
        self._stopping.set()

    async def run(self) -> None:
        """Runs until `stop` is called. Raises SourceUnusable."""
        pauses = backoff_seconds()
        try:
            async with asyncio.timeout(None) as self._stop_timeout:
                while not self._stopping.is_set():
                    self._progress_at = time.monotonic()
                    try:
                        await self._turn()
                        self._unavailable, pauses = None, backoff_seconds()
                    except SourceUnavailable as error:
                        self._unavailable = f"{error.what} unavailable: {error}"
                        seconds = next(pauses)
                        log.warning("mapper_waits", error=str(error), seconds=seconds)
                        await is_set_within(self._stopping, seconds)
                await self._drain()
        except (TimeoutError, SourceUnavailable) as error:
            log.warning("stopped_without_commit", error=str(error) or "the broker did not answer")
        finally:
            self._stop_timeout = None
            await self._sink.stop()
            await self._source.stop()
            log.info("mapper_stopped", records=self.counts.total(), written=self.n_written.total())

    async def _turn(self) -> None:
        if not self._started:
            await self._source.start()
            await self._sink.start()
            self._started = True
            log.info("mapper_started", group=self._settings.group_id)
        assignment = self._source.assignment
        self._forget_lost()
        if self._source.revoking:
            await self._drain()
            self._source.release()
            await self._source.poll([], max_records=1, timeout_ms=0)
            return
        if assignment is not None and assignment.generation != self._generation:
            await self._adopt()
            self._generation = assignment.generation
        await self.topics.watch()
        await self._settle()
        if len(self._emitted) < MAX_UNACKNOWLEDGED:
            moved = await self._write()
            await self._read(0 if moved else POLL_MS)
        seconds = PAUSED_SECONDS if self.paused else COMMIT_SECONDS
        if time.monotonic() - self._committed_at >= seconds:
            await self._commit()
            if self.paused or self._progress.keys() - self.readings.keys():
                await self._ask_progress()

    # Partitions

    def _forget_lost(self) -> None:
        """Drops the positions of lost partitions, also if the group assigns again at once."""
        assigned = self._source.partitions
        self.readings = {each: it for each, it in self.readings.items() if each in assigned}

    async def _adopt(self) -> None:
        """Begins where the group has committed; the positions of kept partitions stay."""
        assigned = self._source.partitions
        new = sorted(each for each in assigned if each not in self.readings)
        repeats, settings = self._settings.repeats, self._settings
        has_written = await self._source.has_written()  # members commit before they write
        await self._ask_progress()
        has_commits = any(each.committed for each in self._progress.values())
        repeats.require_begin(settings.group_id, has_commits=has_commits, has_written=has_written)
        await self.topics.watch(at_once=True)
        firsts = await self._source.beginning(new)
        committed = await self._source.committed(new)
        ends = await self._source.end(new)  # after the commits, which are not beyond it then
        now_ms = time.time_ns() // 1_000_000
        for partition in new:
            commit = self.topics.commit_of_same(partition, committed.get(partition))
            name, end = settings.topic_names[partition[0]], ends[partition]
            repeats.require(partition, name, commit, end=end, now_ms=now_ms)
            if commit is not None and commit.offset > end:
                commit = None
            offset = max(firsts[partition], commit.offset if commit else 0)
            place = (offset, note_of(commit).clock_ms)
            self.readings[partition] = Reading(place, place)
            self._source.seek(partition, offset)
        self._refreshed_at = 0.0  # nothing is written before these positions are committed
        if assigned:
            await self._commit()

    async def _read(self, timeout_ms: int) -> None:
        """Reads further records of the partitions that have none waiting."""
        empty = [each for each, reading in self.readings.items() if reading.backlog is None]
        batches = await self._source.poll(
            empty, max_records=self._settings.max_poll_records, timeout_ms=timeout_ms
        )
        for records in batches:
            reading = self.readings[records.log, records.partition]
            stages = self._stages[records.log]
            reading.backlog = Backlog(records, stages, reading.place[1])

    async def _ask_progress(self) -> None:
        self._progress = await self._source.progress()
        ends = {partition: each.end for partition, each in self._progress.items()}
        for reading in self.readings.values():
            if reading.backlog is not None:  # new partitions and logs have their first known end
                known = reading.backlog.ends or {}
                reading.backlog.ends = {p: min(end, known.get(p, end)) for p, end in ends.items()}

    def _limit_ms(self, ends: Mapping[Partition, int]) -> float:
        """The clock up to which records may be written; partitions read up to *ends* have none."""
        others = {each: it for each, it in self._progress.items() if each not in self.readings}
        clocks = [behind_ms(others, ends)]
        for partition, reading in self.readings.items():
            (offset, clock_ms), backlog = reading.place, reading.backlog
            if backlog is not None and backlog.has_times:
                clocks.append(backlog.head_ms)
                continue
            offset = offset if backlog is None else backlog.next_offset
            if offset < ends.get(partition, UNLIMITED):
                clocks.append(clock_ms)
        behind = min(clocks)
        return UNLIMITED if behind == UNLIMITED else behind + self._settings.max_lead_ms

    async def _write(self) -> bool:
        """Emits the records that may be written; returns whether there were any."""
        limit_ms, self.paused = self._limit_ms({}), 0
        ahead = {
            partition: reading.backlog
            for partition, reading in self.readings.items()
            if reading.backlog is not None and reading.backlog.leads(limit_ms)
        }
        if any(backlog.ends is None for backlog in ahead.values()):
            await self._ask_progress()
        limits = {each: self._limit_ms(backlog.ends or {}) for each, backlog in ahead.items()}
        places: dict[Partition, tuple[int, int]] = {}
        rows: dict[tuple[Output, int], list[OutputRecord]] = {}
        for partition, reading in self.readings.items():
            if reading.backlog is None:
                continue
            portion = reading.backlog.take(limits.get(partition, limit_ms))
            self.paused += not reading.backlog.is_empty
            if portion is not None:
                self._add(rows, partition, portion)
                places[partition] = reading.place = portion.next_offset, portion.clock_ms
            if reading.backlog.is_empty:
                reading.backlog = None
        if places:
            acknowledged: Awaitable[None] = await self._sink.emit(rows)
            self._emitted.append((asyncio.ensure_future(acknowledged), places))
        return bool(places)

    def _add(
        self,
        rows: dict[tuple[Output, int], list[OutputRecord]],
        partition: Partition,
        portion: Portion,
    ) -> None:
        for _, output, trace_id, value in portion.messages:
            key = trace_id.encode()
            rows.setdefault(self._sink.lane(output, key), []).append(OutputRecord(key, value))
            self.n_written[output] += 1
        source, number = partition
        names = dict.fromkeys(self._settings.topic_names, self._settings.topic_names[source])
        letters = [letter for _, letter in portion.letters]
        self.reasons.update(letter.reason for letter in letters)
        if letters:
            lane = self._sink.letter_lane(number)
            rows.setdefault(lane, []).extend(encode_dead_letters(letters, names, partition=number))
        self.counts.update({(source, name): n for name, n in portion.outcomes.items()})

    # Acknowledgements and commits

    async def _settle(self, most: int = MAX_UNACKNOWLEDGED) -> None:
        """Notes acknowledged records; waits if *most* are not. Raises errors of the sink."""
        if len(self._emitted) >= most:
            self._source.stay_in_group()
            await asyncio.wait([self._emitted[0][0]], timeout=1.0)
        while self._emitted and self._emitted[0][0].done():
            acknowledged, places = self._emitted.popleft()
            acknowledged.result()
            for partition, place in places.items():
                if partition in self.readings:
                    self.readings[partition].acknowledged = place

    async def _drain(self) -> None:
        """Waits for all acknowledgements, and commits. Raises SourceUnavailable."""
        while self._emitted:
            self._progress_at = time.monotonic()
            await self._settle(1)
        if self.readings and self._generation:
            await self._commit(drained=True)

    async def _commit(self, *, drained: bool = False) -> None:
        """Commits acknowledged positions, and all positions at longer intervals."""
        self._committed_at = now = time.monotonic()
        every = drained or now - self._refreshed_at >= REFRESH_SECONDS
        changed = {
            partition: reading.to_commit
            for partition, reading in self.readings.items()
            if every or reading.to_commit != reading.committed
        }
        wall_ms = time.time_ns() // 1_000_000
        commits = {
            (name, number): Committed(
                offset, Note(clock_ms, wall_ms, drained, self.topics.ids.get(name)).text
            )
            for (name, number), (offset, clock_ms) in changed.items()
        }
        if not commits:
            return
        if not await self._source.commit(commits):
            log.warning("commit_refused", tasks=sorted(number for _, number in commits))
            return
        for partition, place in changed.items():
            self.readings[partition].committed = place
        self._refreshed_at = now if every else self._refreshed_at
        self.last_commit_ms = wall_ms

"""The loop of an eligible process: once elected it reads `settled`, learns, and publishes.

A process that is not elected follows the topic `weights`, so it can show the live weights, and
continue from the latest state once elected.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import structlog
from msgspec.structs import replace

from evaluator.core.measures import MeasureSet
from evaluator.core.online.events import Command
from evaluator.core.online.online_learner import IntervalResult, OnlineLearner
from evaluator.core.online.ordered_merge import OrderedMerge, SettledGap, SettledQuery
from evaluator.core.online.rules import Rules
from evaluator.core.online.tick_merge import TickMerge
from evaluator.core.online.views import LeaderView
from evaluator.core.online.watched_queries import WatchedQueries
from evaluator.core.types.records import WatermarkRecord
from evaluator.leader.alarms import LeaderAlarms
from evaluator.ports import Fenced, Leadership, SourceUnavailable, SourceUnusable
from evaluator.waiting import backoff_seconds, is_set_within
from evaluator.wire.outputs.settled import (
    Refused,
    SettledUnreadable,
    Watched,
    WatchedReader,
    decode_settled,
    watched_of,
)
from evaluator.wire.reading import refused_as
from evaluator.wire.records import OutputRecord, SettledRecords
from evaluator.wire.weights.checksum import WeightsRefused
from evaluator.wire.weights.leader_state import (
    STATE_KEY,
    CommandRefused,
    RecordWriter,
    StateRefused,
    StoredState,
    command_model_of,
    model_of,
    read_command,
    read_state,
)
from evaluator.wire.weights.weights_record import read_live

MAX_READ_RECORDS: Final = 10_000
MAX_BUFFERED: Final = 50_000
"""Limit of unprocessed queries; beyond it only the awaited tasks are read."""
MAX_BUFFERED_BYTES: Final = 128 << 20
"""Limit of the bytes of their records: training data of a query may take 512 KiB, more in
memory."""
IDLE_MS: Final = 500

_STATE_UNUSABLE: Final = (
    "The leader's state in the topic weights cannot be used: {}. Another version may have written "
    "it: run that one. Or delete the state with `evaluator weights forget`: learning restarts, and "
    "live weights remain live."
)

Record = SettledQuery | tuple[int, WatermarkRecord]

log = structlog.get_logger(__name__)


class Leader:
    """An eligible process: takes part in the election, and leads while it is elected.

    *measures* are those of the workers. *record_writer* has their fingerprint: queries of other
    workers are ignored. Without *rules* nothing is learned, without *alarms* nothing is watched.
    """

    def __init__(
        self,
        leadership: Leadership,
        *,
        measures: MeasureSet,
        record_writer: RecordWriter,
        rules: Rules | None = None,
        alarms: LeaderAlarms | None = None,
    ) -> None:
        self._leadership = leadership
        self._measures = measures
        self._reader: WatchedReader | None = None
        if alarms is not None:
            self._reader = WatchedReader(alarms.rules.watched(measures), alarms.rules.columns())
        self._rules = rules
        self._alarms = alarms
        self._leads = False
        self._record_writer = record_writer
        self._stopping = asyncio.Event()
        self._state_record = b""
        self._commands: dict[str, Command] = {}
        self._learner: OnlineLearner | None = None  # while this process is the leader
        self._no_state = StoredState(record_writer.fingerprint, record_writer.input_fingerprint)
        self._last_state = self._no_state
        self._sums: Mapping[tuple[str, ...], int] = {}  # of the last published interval
        self._with_unknown_transforms: set[str] = set()  # models of which a warning was logged
        self._n_tasks = 0
        self._counts: Counter[tuple[str, ...]] = Counter(
            {("records", outcome): 0 for outcome in ("query", "watermark", "foreign", "unreadable")}
            | {("gaps",): 0, ("leader_epochs",): 0}
        )
        self.live: Mapping[str, bytes] = {}
        """The live record of each model, as it was published."""
        self.view = LeaderView(counts=dict(self._counts))

    def readiness(self) -> list[str]:
        """Reasons why the weights of this process may be outdated."""
        return [] if self._n_tasks else ["no broker has answered the leader yet"]

    def stop(self) -> None:
        """Ends `run` in order."""
        self._stopping.set()

    async def run(self) -> None:
        """Runs until `stop` is called. Raises SourceUnusable."""
        pauses, started = backoff_seconds(), False
        try:
            while not self._stopping.is_set():
                try:
                    if not started:
                        self._n_tasks = await self._leadership.start()
                        started = True
                    await self._follow_or_lead()
                    pauses = backoff_seconds()
                except Fenced:
                    log.warning("leader_fenced")
                    self._resign()
                except SourceUnavailable as error:
                    seconds = next(pauses)
                    log.warning("leader_waits", error=str(error), seconds=seconds)
                    self._resign()
                    await is_set_within(self._stopping, seconds)
        finally:
            self._resign()
            await self._leadership.stop()

    async def _follow_or_lead(self) -> None:
        if not self._leadership.elected:
            self._resign()
            self._read_weights(await self._leadership.follow(timeout_ms=IDLE_MS))
            return
        if not self._leads:
            self._read_weights(await self._leadership.begin_epoch())
            await self._begin_leading()
        self._read_weights(await self._leadership.follow(timeout_ms=0))
        for records in await self._leadership.read(
            self._tasks_to_read(), max_records=MAX_READ_RECORDS, timeout_ms=IDLE_MS
        ):
            if not await self._receive(records):
                break
        self._update_view()

    # The topic `weights`

    def _read_weights(self, records: Sequence[OutputRecord]) -> None:
        live = dict(self.live)
        for key, value, _ in records:
            if key is None or (self._alarms is not None and self._alarms.keep(key, value)):
                continue
            if key == STATE_KEY:
                self._state_record = value
            elif (model := command_model_of(key)) is not None:
                self._read_command(model, value)
            elif (model := model_of(key)) is not None and _is_usable(model, value):
                live[model] = value
        self.live = {model: value for model, value in live.items() if value}

    def _read_command(self, model: str, value: bytes) -> None:
        self._commands.pop(model, None)
        try:
            if value:
                self._commands[model] = read_command(value)
                log.info("command_received", model=model)
        except CommandRefused as error:
            log.warning("command_unreadable", model=model, error=str(error))

    # Leadership

    async def _begin_leading(self) -> None:
        if self._alarms is not None:
            self._alarms.begin(self._n_tasks)
        self._counts["leader_epochs",] += 1
        if self._rules is not None:
            await self._continue_learning()
        else:
            log.info("leader_elected", event_time_ms=None, new_epoch=False)
            await self._seek()
        self._leads = True

    async def _continue_learning(self) -> None:
        try:
            stored = read_state(self._state_record) if self._state_record else self._no_state
        except StateRefused as error:
            raise SourceUnusable(_STATE_UNUSABLE.format(error)) from None
        new_epoch = stored.fingerprint != self._no_state.fingerprint
        if stored.input_fingerprint != self._no_state.input_fingerprint:
            new_epoch, stored = True, stored.for_other_workers()
        log.info("leader_elected", event_time_ms=stored.event_time_ms, new_epoch=new_epoch)
        await self._begin(stored, new_epoch=new_epoch)

    async def _begin(self, stored: StoredState, *, new_epoch: bool) -> None:
        """Continues to learn from a state."""
        if self._rules is None:
            return
        writer, self._last_state = self._record_writer, stored
        writer.parents = dict(stored.parents)
        writer.generations = {task: list(of) for task, of in stored.generations.items()}
        try:
            with refused_as(StateRefused, "it does not fit these topics or settings"):
                self._learner = OnlineLearner(
                    self._rules,
                    n_tasks=self._n_tasks,
                    state=stored.state,
                    positions=stored.positions,
                    new_epoch=new_epoch,
                )
        except StateRefused as error:
            raise SourceUnusable(_STATE_UNUSABLE.format(error)) from None
        self._sums = self._learner.sums()
        self._counts.update({("values", *path): 0 for path in self._sums})
        await self._seek()

    async def _seek(self) -> None:
        """Continues each task with the first record that the learner or the alarms need."""
        positions = [] if self._learner is None else [self._last_state.positions]
        positions += [] if self._alarms is None else [self._alarms.positions]
        for task in range(self._n_tasks):
            await self._leadership.seek(task, min(of.get(task, 0) for of in positions))

    def _position(self, task: int) -> int:
        """The learner has learned from the records of a task before this offset."""
        return self._last_state.positions.get(task, 0)

    def _resign(self) -> None:
        if self._leads:
            log.info("leader_resigned")
        self._learner, self._leads = None, False
        if self._alarms is not None:
            self._alarms.resign()
        self._update_view()

    # The topic `settled`

    def _tasks_to_read(self) -> Sequence[int]:
        """The tasks to read: if too many queries wait, only the awaited tasks."""
        for merge in self._merges():
            if merge.n_buffered >= MAX_BUFFERED or merge.n_buffered_bytes >= MAX_BUFFERED_BYTES:
                return merge.awaited
        return range(self._n_tasks)

    def _merges(self) -> list[OrderedMerge | TickMerge]:
        """The order of learning, and that of alarms."""
        found: list[OrderedMerge | TickMerge] = []
        found += [] if self._learner is None else [self._learner.merge]
        watch = None if self._alarms is None else self._alarms.watch
        return found if watch is None else [*found, watch.merge]

    async def _receive(self, records: SettledRecords) -> bool:
        """Takes records; returns whether reading continues after them."""
        learner, writer, task = self._learner, self._record_writer, records.task
        if not self._leads:
            return False
        name, offset = records.generation.decode(errors="replace"), int(records.offsets[-1])
        is_own = records.fingerprint == writer.input_fingerprint.encode()
        learns = is_own and learner is not None and offset >= self._position(task)
        known = writer.generations.setdefault(task, [name]) if learns else [name]
        if name not in known and learner is not None:
            return await self._learn(learner, task, [], (name, int(records.offsets[0])))
        learns = learns and name == known[-1]
        watches = is_own and self._alarms is not None and self._alarms.needs(task, name, offset)
        if not learns and not watches:
            self._counts["records", "foreign"] += len(records)
            return True
        read, watched = self._decode(records, learns=learns)
        if self._alarms is not None and (found := self._alarms.receive(task, name, watched)):
            await self._leadership.publish(found)
        return learner is None or not learns or await self._learn(learner, task, read, None)

    async def _learn(
        self,
        learner: OnlineLearner,
        task: int,
        read: Sequence[Record],
        next_generation: tuple[str, int] | None,
    ) -> bool:
        """Gives records of a task to the learner, or a new generation begins.

        Returns whether reading continues after them.
        """
        writer = self._record_writer
        for model, command in self._commands.items():  # also of a model that was not known yet
            learner.accept_command(model, command)
        try:
            results = learner.receive(read)
        except SettledGap as gap:
            self._counts["gaps",] += 1
            offset = gap.query.offset
            log.warning("settled_gap", task=task, offset=offset, error=str(gap))
            last = replace(self._last_state, generations=writer.generations)
            await self._begin(last.without(task, offset), new_epoch=True)
            return False
        await self._publish(results)
        if next_generation is None:
            return True
        name, offset = next_generation
        log.warning("settled_generation_begins", task=task, offset=offset, generation=name)
        last = replace(self._last_state, generations=writer.generations)
        await self._begin(last.in_generation(task, name, offset), new_epoch=True)
        return False

    def _decode(
        self, records: SettledRecords, *, learns: bool
    ) -> tuple[list[Record], Sequence[Watched]]:
        """The records that the learner needs, if it learns, and those for the alarms."""
        read, watched, refused = list[Record](), list[Watched](), list[Refused]()
        task, offsets = records.task, list[int]()
        if not learns and self._reader is not None:
            watched, refused = self._reader(records.values, records.offsets, task)
        for value, at in (
            zip(records.values, records.offsets.tolist(), strict=True) if learns else ()
        ):
            try:
                read.append(decode_settled(value or b"", self._measures, task=task, offset=at))
                offsets.append(at)
            except SettledUnreadable as unread:
                refused.append((at, unread))
        if learns and self._alarms is not None:
            watched = watched_of(read, offsets, self._alarms.rules.columns())
        queries = SettledQuery, WatchedQueries
        n_watermarks = sum(not isinstance(each, queries) for each in read or watched)
        self._counts["records", "watermark"] += n_watermarks
        self._counts["records", "query"] += len(records) - len(refused) - n_watermarks
        for offset, error in refused:
            self._counts["records", "unreadable"] += 1
            n = self._counts["records", "unreadable"]
            if n & (n - 1) == 0:  # only the 1st, 2nd, 4th, 8th ...: there may be many
                log.warning("settled_unreadable", task=task, offset=offset, n=n, error=str(error))
        return read[bisect_left(offsets, self._position(task)) :], watched

    async def _publish(self, results: Sequence[IntervalResult]) -> None:
        records = [each for result in results for each in self._record_writer.records(result)]
        for release in [release for result in results for release in result.releases]:
            self._counts["releases", release.model, release.status] += 1
            members = "model", "status", "epoch", "version", "of_version", "reason"
            log.info("weights_published", **{name: getattr(release, name) for name in members})
        if records:
            await self._leadership.publish(records)
            self._last_state = read_state(records[-1][1].value)
            sums, before = results[-1].sums, self._sums
            self._counts.update({("values", *at): n - before.get(at, 0) for at, n in sums.items()})
            self._sums = sums

    def _update_view(self) -> None:
        view = LeaderView(n_tasks=self._n_tasks, counts=dict(self._counts))
        if self._leads:
            awaited = {task for merge in self._merges() for task in merge.awaited}
            n_buffered = max(merge.n_buffered for merge in self._merges())
            waits = tuple(sorted(awaited))
            view = replace(view, is_leader=True, awaited=waits, n_buffered=n_buffered)
            if self._alarms is not None:
                view = replace(view, alarms=self._alarms.view())
        if (learner := self._learner) is not None:
            self._warn_of_transforms(learner)
            view = replace(
                view,
                n_ignored=learner.n_ignored,
                now_ms=self._last_state.event_time_ms,
                models=learner.views,
            )
        self.view = view

    def _warn_of_transforms(self, learner: OnlineLearner) -> None:
        """Warns once for each model of transforms of features that no model has."""
        for model in learner.views:
            if model.unknown_transforms and model.model not in self._with_unknown_transforms:
                self._with_unknown_transforms.add(model.model)
                features = list(model.unknown_transforms)
                log.warning("transforms_unknown", model=model.model, features=features)


def _is_usable(model: str, value: bytes) -> bool:
    """Whether a live record can be served, else the previous one stays live; b"" deletes it."""
    try:
        return not value or bool(read_live(value))
    except WeightsRefused as error:
        log.warning("weights_unreadable", model=model, error=str(error))
        return False

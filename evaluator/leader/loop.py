"""The loop of an eligible process: once elected it reads `settled`, learns, and publishes.

A process that is not elected reads what the leader publishes, so it can show the live weights, and
has the state to continue from if it is elected.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from evaluator.core.online.events import Command
from evaluator.core.online.online_learner import IntervalResult, LeaderView, OnlineLearner
from evaluator.core.online.ordered_merge import SettledGap, SettledQuery
from evaluator.core.online.rules import Rules
from evaluator.core.types.records import WatermarkRecord
from evaluator.leader.places import Places
from evaluator.ports import Fenced, Leadership, SettledRecords, SourceUnavailable, SourceUnusable
from evaluator.wire.outputs.settled import SettledUnreadable, decode_settled
from evaluator.wire.reading import refused_as
from evaluator.wire.records import LeaderOutput, OutputRecord
from evaluator.wire.weights.leader_state import (
    STATE_KEY,
    RecordWriter,
    StateRefused,
    StoredState,
    WordRefused,
    command_model_of,
    model_of,
    read_command,
    read_state,
)
from evaluator.wire.weights.weights_record import WeightsRefused, read_live

MAX_READ_RECORDS: Final = 500
MOST_WAITING: Final = 50_000
"""Queries that were read and not processed; beyond that only the awaited tasks are read."""
MOST_WAITING_BYTES: Final = 128 << 20
"""Bytes of their records: training data of a query may take 512 KiB, and more in memory."""
IDLE_MS: Final = 500
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 10.0

_REFUSED: Final = (
    "The leader's state in the topic weights cannot be used: {}. Another version may have written "
    "it: let that one run. Or delete it with `evaluator weights forget`: learning restarts, and "
    "what is live stays live."
)

log = structlog.get_logger(__name__)


class Leader:
    """An eligible process: takes part in the election, and leads while it is elected.

    Args:
        leadership: the election and the topics, shared with the other processes.
        rules: the rules of learning and promotion.
        record_writer: has the fingerprint of the workers whose queries count; others are ignored.
    """

    def __init__(
        self, leadership: Leadership, *, rules: Rules, record_writer: RecordWriter
    ) -> None:
        self._leadership = leadership
        self._rules = rules
        self._record_writer = record_writer
        self._fingerprint = record_writer.input_fingerprint.encode()
        self._stopping = asyncio.Event()
        self._stored: bytes | None = None
        self._commands: dict[str, Command] = {}
        self._leader: OnlineLearner | None = None
        self._places = Places({})
        self._last: StoredState | None = None
        self._n_tasks = 0
        self._counts: Counter[tuple[str, ...]] = Counter(
            {("records", outcome): 0 for outcome in ("query", "watermark", "foreign", "unreadable")}
            | {("gaps",): 0, ("leader_epochs",): 0}
        )
        self.live: Mapping[str, bytes] = {}
        """The live record of each model, as it was published."""
        self.view = LeaderView(counts=dict(self._counts))

    def readiness(self) -> list[str]:
        """Reasons why the shown weights may be outdated."""
        return [] if self._n_tasks else ["no broker has answered the leader yet"]

    def stop(self) -> None:
        """Ends `run` in order."""
        self._stopping.set()

    async def run(self) -> None:
        """Runs until `stop` is called. Raises SourceUnusable."""
        pause_seconds, started = FIRST_PAUSE_SECONDS, False
        try:
            while not self._stopping.is_set():
                try:
                    if not started:
                        self._n_tasks = await self._leadership.start()
                        started = True
                    await self._go_on()
                    pause_seconds = FIRST_PAUSE_SECONDS
                except Fenced:
                    log.warning("leader_fenced")
                    self._leave()
                except SourceUnavailable as away:
                    log.warning("leader_waits", error=str(away), seconds=pause_seconds)
                    self._leave()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stopping.wait(), pause_seconds)
                    pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        finally:
            self._leave()
            await self._leadership.stop()

    async def _go_on(self) -> None:
        if not self._leadership.elected:
            self._leave()
            self._hear(await self._leadership.follow(timeout_ms=IDLE_MS))
            return
        if self._leader is None:
            self._hear(await self._leadership.begin_epoch())
            await self._take_office()
        self._hear(await self._leadership.follow(timeout_ms=0))
        for records in await self._leadership.read(
            self._wanted(), max_records=MAX_READ_RECORDS, timeout_ms=IDLE_MS
        ):
            await self._receive(records)
        self._show()

    # What was published

    def _hear(self, records: Sequence[OutputRecord]) -> None:
        live = dict(self.live)
        for key, value, _ in records:
            if key is None:
                continue
            if key == STATE_KEY:
                self._stored = value or None
            elif (model := command_model_of(key)) is not None:
                self._hear_word(model, value)
            elif (model := model_of(key)) is not None and _is_usable(model, value):
                live[model] = value
        self.live = {model: value for model, value in live.items() if value}

    def _hear_word(self, model: str, value: bytes) -> None:
        self._commands.pop(model, None)
        try:
            if value:
                self._commands[model] = read_command(value)
                log.info("command_received", model=model)
        except WordRefused as error:
            log.warning("command_unreadable", model=model, error=str(error))

    # Leadership

    async def _take_office(self) -> None:
        try:
            stored = None if self._stored is None else read_state(self._stored)
        except StateRefused as refused:
            raise SourceUnusable(_REFUSED.format(refused)) from None
        self._counts["leader_epochs",] += 1
        same = stored is None or stored.fingerprint == self._record_writer.fingerprint
        if stored is not None and stored.input_fingerprint != self._record_writer.input_fingerprint:
            same = False
            stored = stored.elsewhere()
        log.info(
            "leader_elected",
            event_time_ms=None if stored is None else stored.event_time_ms,
            new_epoch=not same,
        )
        await self._begin(stored, new_epoch=not same)

    async def _begin(self, stored: StoredState | None, *, new_epoch: bool) -> None:
        state, positions = None, dict[int, int]()
        self._last, self._record_writer.parents, self._record_writer.generations = stored, {}, {}
        if stored is not None:
            state, positions = stored.state, stored.positions
            self._record_writer.parents = dict(stored.parents)
            self._record_writer.generations = {n: list(of) for n, of in stored.generations.items()}
        try:
            with refused_as(StateRefused, "it does not fit these topics or settings"):
                self._leader = OnlineLearner(
                    self._rules, n_tasks=self._n_tasks, state=state, new_epoch=new_epoch
                )
        except StateRefused as refused:
            raise SourceUnusable(_REFUSED.format(refused)) from None
        self._places = Places(positions)
        for task in range(self._n_tasks):
            await self._leadership.seek(task, positions.get(task, 0))

    def _leave(self) -> None:
        if self._leader is not None:
            log.info("leader_resigned")
        self._leader = None
        self._show()

    # What has settled

    def _wanted(self) -> Sequence[int]:
        """The tasks to read: if too many queries wait, only the awaited tasks."""
        if self._leader is not None:
            merge = self._leader.merge
            if merge.n_waiting >= MOST_WAITING or merge.n_waiting_bytes >= MOST_WAITING_BYTES:
                return merge.awaited
        return range(self._n_tasks)

    async def _receive(self, records: SettledRecords) -> None:
        leader = self._leader
        if leader is None:
            return
        taken: list[SettledQuery | tuple[int, WatermarkRecord]] = []
        offsets: dict[int, int] = {}
        begins: tuple[int, str] | None = None  # a new generation, where, and its name
        columns = records.offsets, records.values, records.fingerprints, records.generations
        for offset, value, fingerprint, generation in zip(*columns, strict=True):
            name = generation.decode(errors="replace")
            ours = fingerprint == self._fingerprint
            known = self._record_writer.generations.setdefault(records.task, [name]) if ours else []
            if ours and name not in known:
                begins = offset, name
                break
            if not ours or name != known[-1]:
                self._counts["records", "foreign"] += 1
                continue
            record = self._record(value, records.task, offset)
            if isinstance(record, SettledQuery):
                self._places.note(record, offset)
                offsets[id(record)] = offset
            if record is not None:
                taken.append(record)
        for model, command in self._commands.items():  # also of a model that was not known yet
            leader.accept_command(model, command)
        try:
            results = leader.receive(taken)
        except SettledGap as gap:
            await self._begin_anew(gap, offsets[id(gap.query)])
            return
        await self._say(results)
        if begins is not None:
            await self._begin_generation(records.task, *begins)

    def _record(
        self, value: bytes, task: int, offset: int
    ) -> SettledQuery | tuple[int, WatermarkRecord] | None:
        try:
            record = decode_settled(value, self._rules.offline_ranking.measures)
            of_task = record.task if isinstance(record, SettledQuery) else record[0]
            if of_task != task:
                raise SettledUnreadable(f"a record of task {of_task} in partition {task}")
        except SettledUnreadable as error:
            self._counts["records", "unreadable"] += 1
            n = self._counts["records", "unreadable"]
            if n & (n - 1) == 0:  # the 1st, 2nd, 4th, 8th ...: somebody may write many of them
                log.warning("settled_unreadable", task=task, offset=offset, n=n, error=str(error))
            return None
        self._counts["records", "query" if isinstance(record, SettledQuery) else "watermark"] += 1
        return record

    async def _begin_anew(self, gap: SettledGap, offset: int) -> None:
        """Begins a new epoch, with this task at *offset*; live weights stay live."""
        self._counts["gaps",] += 1
        log.warning("settled_gap", task=gap.query.task, offset=offset, error=str(gap))
        await self._begin(self._so_far.without(gap.query.task, offset), new_epoch=True)

    async def _begin_generation(self, task: int, offset: int, name: str) -> None:
        """Begins a new epoch: the inputs of a task have changed from *offset* on."""
        log.warning("settled_generation_begins", task=task, offset=offset, generation=name)
        await self._begin(self._so_far.in_generation(task, name, offset), new_epoch=True)

    @property
    def _so_far(self) -> StoredState:
        """The last published state, with the generations that are read."""
        last = self._last or StoredState(
            self._record_writer.fingerprint, self._record_writer.input_fingerprint
        )
        return replace(last, generations=self._record_writer.generations)

    async def _say(self, results: Sequence[IntervalResult]) -> None:
        said: list[tuple[LeaderOutput, OutputRecord]] = []
        for each in results:
            positions = self._places.up_to(each.next_ns)
            said += self._record_writer.records(each, positions)
            for release in each.releases:
                self._counts["releases", release.model, release.status] += 1
                log.info(
                    "weights_published",
                    model=release.model,
                    status=release.status,
                    epoch=release.epoch,
                    version=release.version,
                    of_version=release.of_version,
                    reason=release.reason,
                )
        if said:
            await self._leadership.publish(said)
            self._last = read_state(said[-1][1].value)

    def _show(self) -> None:
        leader = self._leader
        if leader is None:
            self.view = LeaderView(n_tasks=self._n_tasks, counts=dict(self._counts))
            return
        last = self._last
        self.view = LeaderView(
            is_leader=True,
            n_tasks=self._n_tasks,
            awaited=tuple(leader.merge.awaited),
            n_waiting=leader.merge.n_waiting,
            n_ignored=leader.n_ignored,
            now_ms=None if last is None else last.event_time_ms,
            models=leader.views(),
            counts=dict(self._counts),
        )


def _is_usable(model: str, value: bytes) -> bool:
    """Whether a live record can be served; b"" deletes it. If not, the one before stays live."""
    try:
        return not value or bool(read_live(value))
    except WeightsRefused as refused:
        log.warning("weights_unreadable", model=model, error=str(refused))
        return False

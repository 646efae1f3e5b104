"""The loop of the steward: elected, it reads what has settled, learns, and publishes.

Who is not elected follows what is published, so that every process can show the live weights, and
whoever comes next has the state to go on from.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from evaluator.core.merge import SettledGap, SettledQuery
from evaluator.core.releases import Rules, Word
from evaluator.core.steward import Steward, StewardView, Turned
from evaluator.core.types import Mark
from evaluator.ports import Deposed, Office, SettledRecords, SourceAway, SourceUnusable
from evaluator.steward.places import Places
from evaluator.wire.reading import refused_as
from evaluator.wire.records import OutputRecord, StewardOutput
from evaluator.wire.settled import SettledUnreadable, decode_settled
from evaluator.wire.stewardship import (
    STATE_KEY,
    Scribe,
    StateRefused,
    StoredState,
    WordRefused,
    model_of,
    read_state,
    read_word,
    word_model_of,
)
from evaluator.wire.weights import WeightsRefused, read_live

MAX_READ_RECORDS: Final = 500
MOST_WAITING: Final = 50_000
"""Queries that were read and wait for others; beyond that only those that are waited for."""
MOST_WAITING_BYTES: Final = 128 << 20
"""Of their records, for what a query offers may be 512 KiB; in memory they take more."""
IDLE_MS: Final = 500
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 10.0

_REFUSED: Final = (
    "The steward's state in the topic weights cannot be used: {}. Another version may have written "
    "it: let that one run. Or delete it with `evaluator weights forget`: learning begins anew, and "
    "what is live stays live."
)

log = structlog.get_logger(__name__)


class Stewardship:
    """One process's part in stewarding.

    Args:
        office: shared with the other processes.
        rules: how is learned and promoted.
        scribe: names the rules and the workers whose queries count; others' are left alone.
    """

    def __init__(self, office: Office, *, rules: Rules, scribe: Scribe) -> None:
        self._office = office
        self._rules = rules
        self._scribe = scribe
        self._lineage = scribe.input_lineage.encode()
        self._stopping = asyncio.Event()
        self._stored: bytes | None = None
        self._words: dict[str, Word] = {}
        self._steward: Steward | None = None
        self._places = Places({})
        self._last: StoredState | None = None
        self._n_tasks = 0
        self._counts: Counter[tuple[str, ...]] = Counter(
            {("records", outcome): 0 for outcome in ("query", "mark", "foreign", "unreadable")}
            | {("gaps",): 0, ("terms",): 0}
        )
        self.live: Mapping[str, bytes] = {}
        """The live record of each model, as it was published."""
        self.view = StewardView(counts=dict(self._counts))

    def readiness(self) -> list[str]:
        """Reasons why what is shown may be old."""
        return [] if self._n_tasks else ["no broker has answered the steward yet"]

    def stop(self) -> None:
        """Ends `run` in order."""
        self._stopping.set()

    async def run(self) -> None:
        """Until it is stopped. Raises SourceUnusable."""
        pause_seconds, started = FIRST_PAUSE_SECONDS, False
        try:
            while not self._stopping.is_set():
                try:
                    if not started:
                        self._n_tasks = await self._office.start()
                        started = True
                    await self._go_on()
                    pause_seconds = FIRST_PAUSE_SECONDS
                except Deposed:
                    log.warning("steward_deposed")
                    self._leave()
                except SourceAway as away:
                    log.warning("steward_waits", error=str(away), seconds=pause_seconds)
                    self._leave()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stopping.wait(), pause_seconds)
                    pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
        finally:
            self._leave()
            await self._office.stop()

    async def _go_on(self) -> None:
        if not self._office.elected:
            self._leave()
            self._hear(await self._office.follow(timeout_ms=IDLE_MS))
            return
        if self._steward is None:
            self._hear(await self._office.enter())
            await self._take_office()
        self._hear(await self._office.follow(timeout_ms=0))
        for records in await self._office.read(
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
            elif (model := word_model_of(key)) is not None:
                self._hear_word(model, value)
            elif (model := model_of(key)) is not None and _is_usable(model, value):
                live[model] = value
        self.live = {model: value for model, value in live.items() if value}

    def _hear_word(self, model: str, value: bytes) -> None:
        self._words.pop(model, None)
        try:
            if value:
                self._words[model] = read_word(value)
                log.info("word_heard", model=model)
        except WordRefused as error:
            log.warning("word_unreadable", model=model, error=str(error))

    # Office

    async def _take_office(self) -> None:
        try:
            stored = None if self._stored is None else read_state(self._stored)
        except StateRefused as refused:
            raise SourceUnusable(_REFUSED.format(refused)) from None
        self._counts["terms",] += 1
        same = stored is None or stored.lineage == self._scribe.lineage
        if stored is not None and stored.input_lineage != self._scribe.input_lineage:
            same = False
            stored = stored.elsewhere()
        log.info(
            "steward_in_office",
            event_time_ms=None if stored is None else stored.event_time_ms,
            new_epoch=not same,
        )
        await self._begin(stored, new_epoch=not same)

    async def _begin(self, stored: StoredState | None, *, new_epoch: bool) -> None:
        state, positions = None, dict[int, int]()
        self._last, self._scribe.parents, self._scribe.generations = stored, {}, {}
        if stored is not None:
            state, positions = stored.state, stored.positions
            self._scribe.parents = dict(stored.parents)
            self._scribe.generations = {n: list(of) for n, of in stored.generations.items()}
        try:
            with refused_as(StateRefused, "it does not fit these topics or settings"):
                self._steward = Steward(
                    self._rules, n_tasks=self._n_tasks, state=state, new_epoch=new_epoch
                )
        except StateRefused as refused:
            raise SourceUnusable(_REFUSED.format(refused)) from None
        self._places = Places(positions)
        for task in range(self._n_tasks):
            await self._office.seek(task, positions.get(task, 0))

    def _leave(self) -> None:
        if self._steward is not None:
            log.info("steward_out_of_office")
        self._steward = None
        self._show()

    # What has settled

    def _wanted(self) -> Sequence[int]:
        """The tasks that are read of: of too much that waits only those that it waits for."""
        if self._steward is not None:
            merge = self._steward.merge
            if merge.n_waiting >= MOST_WAITING or merge.n_waiting_bytes >= MOST_WAITING_BYTES:
                return merge.awaited
        return range(self._n_tasks)

    async def _receive(self, records: SettledRecords) -> None:
        steward = self._steward
        if steward is None:
            return
        taken: list[SettledQuery | tuple[int, Mark]] = []
        offsets: dict[int, int] = {}
        begins: tuple[int, str] | None = None  # a new generation, where, and its name
        columns = records.offsets, records.values, records.lineages, records.generations
        for offset, value, lineage, generation in zip(*columns, strict=True):
            name = generation.decode(errors="replace")
            ours = lineage == self._lineage
            known = self._scribe.generations.setdefault(records.task, [name]) if ours else []
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
        for model, word in self._words.items():  # also of a model that was not known yet
            steward.hear(model, word)
        try:
            turned = steward.receive(taken)
        except SettledGap as gap:
            await self._begin_anew(gap, offsets[id(gap.query)])
            return
        await self._say(turned)
        if begins is not None:
            await self._begin_generation(records.task, *begins)

    def _record(
        self, value: bytes, task: int, offset: int
    ) -> SettledQuery | tuple[int, Mark] | None:
        try:
            record = decode_settled(value, self._rules.contest.measures)
            of_task = record.task if isinstance(record, SettledQuery) else record[0]
            if of_task != task:
                raise SettledUnreadable(f"a record of task {of_task} in partition {task}")
        except SettledUnreadable as error:
            self._counts["records", "unreadable"] += 1
            n = self._counts["records", "unreadable"]
            if n & (n - 1) == 0:  # the 1st, 2nd, 4th, 8th ...: somebody may write many of them
                log.warning("settled_unreadable", task=task, offset=offset, n=n, error=str(error))
            return None
        self._counts["records", "query" if isinstance(record, SettledQuery) else "mark"] += 1
        return record

    async def _begin_anew(self, gap: SettledGap, offset: int) -> None:
        """What is live stays so; all else begins with the next epoch, this task at *offset*."""
        self._counts["gaps",] += 1
        log.warning("settled_gap", task=gap.query.task, offset=offset, error=str(gap))
        await self._begin(self._so_far.without(gap.query.task, offset), new_epoch=True)

    async def _begin_generation(self, task: int, offset: int, name: str) -> None:
        """The inputs of a task are other ones from *offset* on; the rest is as after a gap."""
        log.warning("settled_generation_begins", task=task, offset=offset, generation=name)
        await self._begin(self._so_far.in_generation(task, name, offset), new_epoch=True)

    @property
    def _so_far(self) -> StoredState:
        """What was said last, in the generations that are read."""
        last = self._last or StoredState(self._scribe.lineage, self._scribe.input_lineage)
        return replace(last, generations=self._scribe.generations)

    async def _say(self, turned: Sequence[Turned]) -> None:
        said: list[tuple[StewardOutput, OutputRecord]] = []
        for each in turned:
            positions = self._places.up_to(each.next_ns)
            said += self._scribe.records(each, positions)
            for release in each.releases:
                self._counts["releases", release.model, release.status] += 1
                log.info(
                    "weights_said",
                    model=release.model,
                    status=release.status,
                    epoch=release.epoch,
                    version=release.version,
                    of_version=release.of_version,
                    reason=release.reason,
                )
        if said:
            await self._office.publish(said)
            self._last = read_state(said[-1][1].value)

    def _show(self) -> None:
        steward = self._steward
        if steward is None:
            self.view = StewardView(n_tasks=self._n_tasks, counts=dict(self._counts))
            return
        last = self._last
        self.view = StewardView(
            in_office=True,
            n_tasks=self._n_tasks,
            awaited=tuple(steward.merge.awaited),
            n_waiting=steward.merge.n_waiting,
            n_left_alone=steward.n_left_alone,
            now_ms=None if last is None else last.event_time_ms,
            pupils=steward.views(),
            counts=dict(self._counts),
        )


def _is_usable(model: str, value: bytes) -> bool:
    """Whether a live record can be served; b"" deletes it. Who polls keeps what was live before."""
    try:
        return not value or bool(read_live(value))
    except WeightsRefused as refused:
        log.warning("weights_unreadable", model=model, error=str(refused))
        return False

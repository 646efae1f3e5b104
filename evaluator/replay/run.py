"""Evaluates a pinned range of both logs into files, task after task.

Both logs are read in batches; the size of batches does not change the results.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Protocol, runtime_checkable

import msgspec
from msgspec import Struct, field

from evaluator.core.engine.engine import Engine
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import (
    LOGS,
    DeadLetter,
    EvaluationColumns,
    FinalWindow,
    Log,
    Outputs,
    RankingColumns,
)
from evaluator.core.types.segments import NO_SEGMENTS, SegmentRules
from evaluator.core.types.tally import Tally
from evaluator.ports import Place, RangeSource
from evaluator.replay.alarms import AlarmReplay
from evaluator.replay.exposition import OPENMETRICS, Exposition, Writer
from evaluator.replay.feeding import OnRankings, Shown, fed, tasks_of
from evaluator.replay.history import SettledHistory
from evaluator.replay.online_learning import OnlineLearning
from evaluator.replay.ranges import LogRange, ReadRules
from evaluator.replay.results import ResultDirectory, SortKey
from evaluator.replay.weighing import Weighing
from evaluator.replay.writing import (
    DEAD_LETTERS,
    EVALUATIONS,
    SETTLED,
    WINDOWS,
    AtEnd,
    FileRules,
    Part,
    TaskEnd,
    WrittenFiles,
    write_files,
)
from evaluator.wire.messages.staged import restored
from evaluator.wire.outputs import encoding as wire

RUN_DIGITS: Final = 12
"""Length of the default name of a run, a prefix of the chain of the manifest."""


@runtime_checkable
class HasGaps(Protocol):
    """A source in which offsets may be missing."""

    gaps: dict[str, list[tuple[int, int]]]


@runtime_checkable
class HasOrder(Protocol):
    """A source that has the records of both logs in one order."""

    def next_log(self) -> Log:
        """The log of the next records."""


class ReplayRules(Struct, frozen=True, kw_only=True):
    """The rules of a replay; together with the records they determine the results.

    `semantic_settings` are the settings that change results, for the manifest, `meaning` is their
    hash. `new_engine` makes the engine of a task. `weights` is the checksum of the weights of an
    additional ranker; `scorers` are places of functions by ranker. With `learns`, weights are
    learned from settled queries.
    """

    semantic_settings: Mapping[str, object]
    join: JoinRules
    measures: MeasureSet
    new_engine: Callable[[int], Engine]
    read: ReadRules
    emit_query: bool
    at_end: AtEnd
    learns: bool = False
    weights: str | None = None
    scorers: Mapping[str, str] = field(default_factory=dict)
    meaning: str = ""
    segments: SegmentRules = NO_SEGMENTS

    def as_document(self) -> dict[str, object]:
        """All rules by name, fit for JSON; the order is part of the format of the manifest."""
        skips = {f"{log}-{n}": at for (log, n), at in sorted(self.read.skips.items())}
        after: Mapping[str, Mapping[str, object]] = {
            "empty": {"emit_query": self.emit_query, "at_end": self.at_end},
            "freshness_half_life_ms": {
                "learns": self.learns,
                "weights": self.weights,
                **({"scorers": dict(self.scorers)} if self.scorers else {}),
                **({"skips": skips} if skips else {}),
            },
        }
        document: dict[str, object] = {}
        for name, value in self.semantic_settings.items():
            document |= {name: value, **after.get(name, {})}
        return {**document, "third_party_measures": self.measures.origins}

    def for_files(self) -> FileRules:
        """The data of the files in addition to their rows."""
        return FileRules(
            settings=self.as_document(),
            meaning=self.meaning,
            measures=self.measures,
            window_ms=self.join.window_ms,
            retention_ms=self.join.retention_ms,
            at_end=self.at_end,
            segments=self.segments,
            schemas=None if self.read.schemas is None else self.read.schemas.saved,
        )

    def engine(self, task: int) -> Engine:
        engine = self.new_engine(task)
        engine.skips.update({log: self.read.skips.get((log, task), ()) for log in LOGS})
        return engine


async def replay(
    source: RangeSource,
    results: ResultDirectory,
    rules: ReplayRules,
    *,
    topic_names: Mapping[Log, str],
    exposition: Exposition | None = None,
    weighings: Sequence[Weighing] = (),
    online_learning: OnlineLearning | None = None,
    alarms: AlarmReplay | None = None,
    show_progress: Shown = None,
) -> WrittenFiles:
    """Evaluates a range of both logs in every partition into files.

    Args:
        source: closed at the end.
        results: committed at the end, or left empty.
        rules: with the records, they determine the results.
        topic_names: names of the logs in dead-letters.ndjson.
        exposition: writes counters in event time to OPENMETRICS; None: no such file.
        weighings: add a ranker each.
        online_learning: learns from settled queries and writes WEIGHTS; needs `rules.learns`.
        alarms: watches settled queries and writes ALARMS and ALARM_COMMANDS.
        show_progress: as in `tasks_of`.

    Raises:
        SourceUnavailable, SourceUnusable, ResultsUnusable: without leaving files behind.
    """
    run = _Run(results, rules, topic_names, exposition, online_learning, alarms)

    def on_rankings(rankings: RankingColumns) -> RankingColumns:
        for weighing in weighings:
            rankings = weighing.on_rankings(rankings)
        return rankings

    with results:
        tasks = tasks_of(source, rules.read, show_progress=show_progress)
        async with aclosing(tasks):
            async for task, ranges in tasks:
                order = source.next_log if isinstance(source, HasOrder) else None
                await run.evaluate(task, ranges, on_rankings if weighings else None, order)
        for weighing in weighings:
            weighing.check()
        return run.write_files(source.place, source.gaps if isinstance(source, HasGaps) else {})


class _Run:
    """The results of one replay, task by task."""

    def __init__(
        self,
        results: ResultDirectory,
        rules: ReplayRules,
        topic_names: Mapping[Log, str],
        exposition: Exposition | None,
        online_learning: OnlineLearning | None,
        alarms: AlarmReplay | None,
    ) -> None:
        self._results = results
        self._rules = rules
        self._topic_names = topic_names
        self._exposition = exposition
        self._online_learning = online_learning
        self._alarms = alarms
        self._collecting = [each for each in (online_learning, alarms) if each is not None]
        self._tally: Tally = {}
        self._ranges: dict[str, tuple[int, int]] = {}
        self._ends: dict[int, TaskEnd] = {}
        self._n_settled = 0
        self._history = None
        if exposition is not None:
            self._history = SettledHistory(
                results,
                rules.measures.canonical,
                maturity_ms=rules.join.maturity_ms,
                histograms=exposition.histograms,
            )

    async def evaluate(
        self,
        task: int,
        ranges: Mapping[Log, LogRange],
        on_rankings: OnRankings | None,
        order: Callable[[], Log] | None,
    ) -> None:
        """Feeds the engine of one task and collects its outputs."""
        engine, at_end = self._rules.engine(task), self._rules.at_end
        feeding = fed(engine, ranges, at_end=at_end, on_rankings=on_rankings, order=order)
        async with aclosing(feeding):
            async for outputs in feeding:
                self._collect(task, outputs)
        if self._rules.at_end == "hold":
            for alike in engine.remaining():
                self._sort_evaluations([alike])
                if self._history is not None:
                    self._history.hold(alike)
        if self._history is not None:
            self._history.last_until(self._complete_until_ms(engine))
        self._rules.segments.fold(add_tally(self._tally, engine.tally()))
        holds = self._rules.at_end == "hold"
        self._ends[task] = TaskEnd(engine.watermark_ms if holds else None, self._n_settled)
        self._n_settled = 0
        for each in self._collecting:
            each.end_task(self._results, engine.watermark_ms)
        for log in LOGS:
            self._ranges[f"{log}-{task}"] = (ranges[log].start, ranges[log].end)

    def _complete_until_ms(self, engine: Engine) -> int:
        """The time up to which the settled queries of a task are complete."""
        clocks_ms = [ms for ms in engine.clocks_ms.values() if ms is not None]
        certain_ms = max(clocks_ms, default=0)
        if self._rules.at_end == "hold":
            certain_ms = 0 if engine.watermark_ms is None else engine.watermark_ms - 1
        return certain_ms

    def _collect(self, task: int, outputs: Outputs) -> None:
        outputs = restored(outputs, self._rules.read.stages)
        if self._history is not None:
            self._history.settle(outputs.settled)
        self._sort_evaluations(outputs.finished)
        records = wire.encode_settled(
            outputs.settled,
            self._rules.measures,
            task=task,
            maturity_ms=self._rules.join.maturity_ms,
        )
        self._results.write(SETTLED, [record.value for record in records])
        self._n_settled += len(records)
        for each in self._collecting:
            each.collect(self._results, records)
        self._results.sort(WINDOWS, [self._window_row(window) for window in outputs.windows])
        self._results.sort(
            DEAD_LETTERS, [self._dead_letter_row(task, letter) for letter in outputs.dead_letters]
        )

    def _sort_evaluations(self, evaluations: Iterable[EvaluationColumns]) -> None:
        for alike in evaluations:
            if alike.units is None:
                continue
            records = wire.encode_evaluations(
                [alike], self._rules.measures, emit_query=self._rules.emit_query
            )
            keys = zip(alike.event_times_ms.tolist(), alike.trace_ids, alike.node_ids, strict=True)
            values = [record.value for record in records]
            self._results.sort(EVALUATIONS, list(zip(keys, values, strict=True)))

    def _window_row(self, window: FinalWindow) -> tuple[SortKey, bytes]:
        column = self._rules.measures.canonical.index(window.measure)
        key = (window.start_ms, window.model, window.variant, window.ranker, column)
        return key, b"%d %d" % (window.queries, window.sum_units)

    def _dead_letter_row(self, task: int, letter: DeadLetter) -> tuple[SortKey, bytes]:
        topic = self._topic_names[letter.log]
        row = wire.dead_letter_row(letter, topic, partition=task)
        return (topic, task, letter.offset), msgspec.json.encode(row)

    def write_files(
        self, place: Place | None, gaps: dict[str, list[tuple[int, int]]]
    ) -> WrittenFiles:
        """Writes the sorted rows and commits all files."""
        results, rules = self._results, self._rules
        document = None if place is None else place.as_document()
        done = write_files(
            results,
            rules.for_files(),
            [Part(document, self._ranges, self._ends, gaps)],
            self._tally,
            results.sorted_rows,
            alarms=self._alarms,
            online_learning=self._online_learning,
        )
        if self._history is not None and self._exposition is not None:
            labels = {"run": str(done.manifest["chain"])[:RUN_DIGITS], **self._exposition.labels}
            done = done._replace(samples=Writer(self._history, labels).write(results))
            results.finish(OPENMETRICS)
        done.commit(results)
        return done

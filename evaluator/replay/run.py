"""The evaluator over a pinned range of both logs, into files.

Task after task: the log whose clock is behind is read next, a batch at a time, so neither log is
ever held in memory. What is read together changes nothing in the results.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from itertools import groupby
from operator import itemgetter
from typing import Final, Literal, cast

import msgspec

from evaluator.core.engine.engine import Engine
from evaluator.core.measures import MeasureSet
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.types.records import (
    LOGS,
    DeadLetter,
    EvaluationColumns,
    FinalWindow,
    Log,
    Outputs,
    Tally,
)
from evaluator.core.types.skips import Skips
from evaluator.ports import RangeSource, ResultFile, Results, SortKey
from evaluator.replay.exposition import OPENMETRICS, Exposition, Writer, Written
from evaluator.replay.feeding import ended, fed, tasks_of
from evaluator.replay.history import History
from evaluator.replay.manifest import manifest
from evaluator.replay.online_learning import WEIGHTS, OnlineLearning
from evaluator.replay.ranges import LogRange
from evaluator.replay.weighing import Weighing
from evaluator.wire.canonical import encode_document
from evaluator.wire.outputs import encoding as wire

EVALUATIONS: Final = "evaluations.ndjson"
TOTALS: Final = "totals.json"
SETTLED: Final = "settled.ndjson"
WINDOWS: Final = "windows.ndjson"
DEAD_LETTERS: Final = "dead-letters.ndjson"
MANIFEST: Final = "manifest.json"

FILES: Final = (EVALUATIONS, TOTALS, SETTLED, WINDOWS, DEAD_LETTERS, WEIGHTS, MANIFEST)

RUN_DIGITS: Final = 12
"""How much of the manifest's chain names a run where it has no other name."""

AtEnd = Literal["settle", "hold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What the results depend on beside the logs; the manifest tells all of it."""

    retention_ms: int
    maturity_ms: int
    early_ms: int
    remember_ms: int
    out_of_orderness_ms: int
    max_future_skew_ms: int
    window_ms: int
    measures: MeasureSet
    empty: str
    emit_query: bool
    at_end: AtEnd
    ties: str = "id"
    judged_only: bool = False
    freshness_half_life_ms: int = 0
    learns: bool = False  # whether a leader reads what has settled
    weights: str | None = None  # checksum of the weights that are measured as one more ranker
    skips: Skips = field(default_factory=dict)

    def as_document(self) -> dict[str, object]:
        """Every setting by name, fit for JSON."""
        settings = {each.name: getattr(self, each.name) for each in fields(self)}
        scales = self.measures.scales
        del settings["skips"]
        if self.skips:
            settings["skips"] = {f"{log}-{n}": at for (log, n), at in sorted(self.skips.items())}
        return {
            **settings,
            "measures": list(self.measures.asked),
            "map_graded_max_grade": scales.map_graded_max_grade,
            "err_max_grade": scales.err_max_grade,
            "third_party_measures": self.measures.origins,
        }

    def engine(self, task: int) -> Engine:
        """A new engine for one task, which keeps the last revision of each query only."""
        engine = Engine(
            task=task,
            measures=self.measures,
            retention_ms=self.retention_ms,
            maturity_ms=self.maturity_ms,
            early_ms=self.early_ms,
            remember_ms=self.remember_ms,
            out_of_orderness_ms=self.out_of_orderness_ms,
            window_ms=self.window_ms,
            empty=self.empty,
            ties=self.ties,
            judged_only=self.judged_only,
            freshness_half_life_ms=self.freshness_half_life_ms,
            evaluations=False,
            finished=True,
            offers=self.learns,
        )
        engine.skips.update({log: self.skips.get((log, task), ()) for log in LOGS})
        return engine


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay found and wrote: the documents of totals.json and manifest.json, and files.

    `written` is what OPENMETRICS has; None if it was not asked for.
    """

    totals: Mapping[str, object]
    manifest: Mapping[str, object]
    files: Mapping[str, ResultFile]
    written: Written | None = None


async def replay(
    source: RangeSource,
    results: Results,
    meaning: Meaning,
    *,
    topic_names: Mapping[Log, str],
    from_ms: int | None = None,
    to_ms: int | None = None,
    max_poll_records: int = 5_000,
    show_progress: bool | None = None,
    exposition: Exposition | None = None,
    weighing: Weighing | None = None,
    online_learning: OnlineLearning | None = None,
) -> ReplayResult:
    """Evaluates a range of both logs in every partition, and writes the files of it.

    Args:
        source: closed at the end.
        results: made visible at the end, or left empty.
        meaning: every setting that the results depend on.
        topic_names: names of the logs in dead-letters.ndjson.
        from_ms: a log is read from the first record whose clock reaches this.
        to_ms: and to before the first record whose clock reaches this.
        max_poll_records: most records read at once; changes nothing in the results.
        show_progress: a bar on stderr; None: if that is a terminal.
        exposition: how counters in event time are written to OPENMETRICS; None: not at all.
        weighing: adds the ranker of some weights; SourceUnusable if it cannot anywhere.
        online_learning: learns from what settles and writes WEIGHTS; *meaning* learns then.

    Raises:
        SourceUnavailable, SourceUnusable, ResultsUnusable: then no file was left behind.
    """
    run = _Run(results, meaning, topic_names, exposition, weighing, online_learning)
    with results:
        tasks = tasks_of(
            source,
            from_ms=from_ms,
            to_ms=to_ms,
            max_future_skew_ms=meaning.max_future_skew_ms,
            max_poll_records=max_poll_records,
            features=weighing is not None or meaning.learns,
            skips=meaning.skips,
            show_progress=show_progress,
        )
        async with aclosing(tasks):
            async for task, ranges in tasks:
                await run.evaluate(task, ranges)
        if weighing is not None:
            weighing.check()
        return run.write_files()


class _Run:
    """One replay: engines one after the other, and the results of all of them."""

    def __init__(
        self,
        results: Results,
        meaning: Meaning,
        topic_names: Mapping[Log, str],
        exposition: Exposition | None,
        weighing: Weighing | None,
        online_learning: OnlineLearning | None,
    ) -> None:
        self._online_learning = online_learning
        self._on_rankings = None if weighing is None else weighing.on_rankings
        self._results = results
        self._meaning = meaning
        self._topic_names = topic_names
        self._tally: Tally = {}
        self._ranges: dict[str, tuple[int, int]] = {}
        self._watermarks_ms: list[int | None] = []
        self._exposition = exposition
        self._history = (
            None
            if exposition is None
            else History(
                results,
                meaning.measures.canonical,
                maturity_ms=meaning.maturity_ms,
                histograms=exposition.histograms,
            )
        )

    async def evaluate(self, task: int, ranges: Mapping[Log, LogRange]) -> None:
        """Feeds one task's engine and puts aside what follows."""
        engine = self._meaning.engine(task)
        async with aclosing(fed(engine, ranges, self._on_rankings)) as feeding:
            async for outputs in feeding:
                self._take(task, outputs)
        for outputs in ended(engine, self._meaning.at_end):
            self._take(task, outputs)
        if self._meaning.at_end == "hold":
            for alike in engine.remaining():
                self._put_evaluations([alike])
                if self._history is not None:
                    self._history.hold(alike)
        if self._history is not None:
            self._history.last_until(self._lasts_ms(engine))
            self._history.put_aside()
        add_tally(self._tally, engine.tally())
        self._watermarks_ms.append(engine.watermark_ms)
        if self._online_learning is not None:
            self._online_learning.end_task(engine.watermark_ms)
        for log in LOGS:
            self._ranges[f"{log}-{task}"] = (ranges[log].start, ranges[log].end)

    def _lasts_ms(self, engine: Engine) -> int:
        """How far what is known of a task is all there is to know."""
        clocks_ms = [ms for ms in engine.clocks_ms.values() if ms is not None]
        certain_ms = max(clocks_ms, default=0)
        if self._meaning.at_end == "hold":
            certain_ms = 0 if engine.watermark_ms is None else engine.watermark_ms - 1
        return certain_ms

    def _take(self, task: int, outputs: Outputs) -> None:
        if self._history is not None:
            self._history.settle(outputs.settled)
        self._put_evaluations(outputs.finished)
        records = wire.encode_settled(
            outputs.settled,
            self._meaning.measures,
            task=task,
            maturity_ms=self._meaning.maturity_ms,
        )
        self._results.write(SETTLED, [record.value for record in records])
        if self._online_learning is not None:
            self._online_learning.put_aside(self._results, records)
        self._results.sort(WINDOWS, [self._window_row(window) for window in outputs.windows])
        self._results.sort(
            DEAD_LETTERS, [self._dead_letter_row(task, letter) for letter in outputs.dead_letters]
        )

    def _put_evaluations(self, evaluations: Iterable[EvaluationColumns]) -> None:
        for alike in evaluations:
            if alike.units is None:
                continue
            records = wire.encode_evaluations(
                [alike], self._meaning.measures, emit_query=self._meaning.emit_query
            )
            keys = zip(alike.event_times_ms, alike.trace_ids, alike.node_ids, strict=True)
            values = [record.value for record in records]
            self._results.sort(EVALUATIONS, list(zip(keys, values, strict=True)))

    def _window_row(self, window: FinalWindow) -> tuple[SortKey, bytes]:
        column = self._meaning.measures.canonical.index(window.measure)
        key = (window.start_ms, window.model, window.variant, window.ranker, column)
        return key, b"%d %d" % (window.queries, window.sum_units)

    def _dead_letter_row(self, task: int, letter: DeadLetter) -> tuple[SortKey, bytes]:
        topic = self._topic_names[letter.log]
        row = wire.dead_letter_row(letter, topic, partition=task)
        return (topic, task, letter.offset), msgspec.json.encode(row)

    def write_files(self) -> ReplayResult:
        """Writes what was put aside and makes all files appear."""
        totals = wire.totals_document(self._tally, self._meaning.measures)
        results = self._results
        results.write(EVALUATIONS, (line for _, line in results.sorted_rows(EVALUATIONS)))
        results.write(TOTALS, [encode_document(totals, indent=2)])
        results.write(SETTLED, [])
        results.write(WINDOWS, self._window_lines())
        results.write(DEAD_LETTERS, (line for _, line in results.sorted_rows(DEAD_LETTERS)))
        names: tuple[str, ...] = (EVALUATIONS, TOTALS, SETTLED, WINDOWS, DEAD_LETTERS)
        settings = self._meaning.as_document()
        if self._online_learning is not None:
            ends = self._meaning.at_end == "settle"
            results.write(WEIGHTS, self._online_learning.lines(results, ends=ends))
            names, settings["learning"] = (*names, WEIGHTS), self._online_learning.settings
        files = {name: results.finish(name) for name in names}
        counts = {
            **{f"{log}_read": self._tally.get((log, "read"), 0) for log in LOGS},
            **{name.split(".")[0]: files[name].rows for name in names if name != TOTALS},
        }
        written = None
        document = manifest(settings, self._ranges, counts, files)
        if self._history is not None and self._exposition is not None:
            labels = {"run": str(document["chain"])[:RUN_DIGITS], **self._exposition.labels}
            written = Writer(self._history, labels).write(results)
            results.finish(OPENMETRICS)
        results.write(MANIFEST, [encode_document(document, indent=2)])
        files[MANIFEST] = results.finish(MANIFEST)
        results.commit()
        return ReplayResult(totals, document, files, written)

    def _window_lines(self) -> Iterator[bytes]:
        """Windows summed over the tasks, each under every spelling of its measure."""
        measures = self._meaning.measures
        rows = self._results.sorted_rows(WINDOWS)
        for key, parts in groupby(rows, key=itemgetter(0)):
            start_ms, model, variant, ranker, column = cast("tuple[int, str, str, str, int]", key)
            if not self._is_final(start_ms):
                continue
            sums = [tuple(map(int, numbers.split())) for _, numbers in parts]
            queries, sum_units = (sum(column) for column in zip(*sums, strict=True))
            merged = FinalWindow(
                start_ms, model, variant, ranker, measures.canonical[column], queries, sum_units
            )
            for window in wire.spell_windows([merged], measures):
                row = wire.window_row(window, window_ms=self._meaning.window_ms)
                yield encode_document(row)

    def _is_final(self, start_ms: int) -> bool:
        """Whether no task can correct the window any more."""
        deadline_ms = start_ms + self._meaning.window_ms - 1 + self._meaning.retention_ms
        return self._meaning.at_end == "settle" or all(
            watermark_ms is not None and watermark_ms > deadline_ms
            for watermark_ms in self._watermarks_ms
        )

"""The online learner on the settled queries of a replay: the weights that a leader publishes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from evaluator.core.online.online_learner import IntervalResult, OnlineLearner
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.rules import Rules
from evaluator.replay.results import ResultDirectory
from evaluator.wire.outputs.settled import decode_settled, order_position_of
from evaluator.wire.records import OutputRecord
from evaluator.wire.weights.leader_state import RecordWriter

WEIGHTS: Final = "weights.ndjson"
_BATCH: Final = 1_000
_BATCH_BYTES: Final = 16 << 20


class OnlineLearning:
    """Sorts the settled queries of all tasks into one order, and learns from them at the end."""

    def __init__(self, rules: Rules, record_writer: RecordWriter) -> None:
        self._rules = rules
        self._record_writer = record_writer
        self._watermarks_ms: list[int] = []

    @property
    def settings(self) -> dict[str, object]:
        """The settings that the records depend on."""
        return dict(self._record_writer.settings)

    def collect(self, results: ResultDirectory, settled: Sequence[OutputRecord]) -> None:
        """Adds the next records of one task."""
        placed = [(order_position_of(record.value), record.value) for record in settled]
        results.sort(WEIGHTS, [(place, value) for place, value in placed if place is not None])

    def end_task(self, _results: ResultDirectory, watermark_ms: int | None) -> None:
        """Ends a task; queries that settle at *watermark_ms* or later may be incomplete."""
        self._watermarks_ms.append(-1 if watermark_ms is None else watermark_ms)

    def lines(self, results: ResultDirectory, *, ends: bool) -> Iterator[bytes]:
        """The weights records; with *ends*, the last interval is ended too.

        Otherwise queries that settle after the watermark of any task are left out: a leader waits
        for that task.
        """
        until_ms = min(self._watermarks_ms, default=-1)
        learner = OnlineLearner(self._rules, n_tasks=len(self._watermarks_ms))
        learner.merge.end()  # the queries are sorted
        for queries in self._batches(value for _, value in results.sorted_rows(WEIGHTS)):
            certain = [query for query in queries if ends or query.settled_time_ms < until_ms]
            yield from self._published(learner.receive(certain))
        if ends:
            yield from self._published(learner.end())

    def _batches(self, values: Iterable[bytes]) -> Iterator[list[SettledQuery]]:
        batch: list[SettledQuery] = []
        n_bytes = 0
        for value in values:
            record = decode_settled(value, self._rules.offline_ranking.measures)
            if isinstance(record, SettledQuery):
                batch.append(record)
                n_bytes += len(value)
            if len(batch) == _BATCH or n_bytes >= _BATCH_BYTES:
                yield batch
                batch, n_bytes = [], 0
        yield batch

    def _published(self, results: Iterable[IntervalResult]) -> Iterator[bytes]:
        for result in results:
            for topic, record in self._record_writer.records(result):
                if topic == "weights-log":
                    yield record.value

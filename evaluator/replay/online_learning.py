"""Runs the online learner on the settled queries of a replay, as a live leader would."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from evaluator.core.online.online_learner import IntervalResult, OnlineLearner
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.rules import Rules
from evaluator.ports import Results
from evaluator.wire.outputs.settled import decode_settled, place_of
from evaluator.wire.records import OutputRecord
from evaluator.wire.weights.leader_state import RecordWriter

WEIGHTS: Final = "weights.ndjson"
_BATCH: Final = 1_000
_BATCH_BYTES: Final = 16 << 20


class OnlineLearning:
    """Collects the settled queries of all tasks, and learns from them in one order at the end."""

    def __init__(self, rules: Rules, record_writer: RecordWriter) -> None:
        self._rules = rules
        self._record_writer = record_writer
        self._watermarks_ms: list[int] = []

    @property
    def settings(self) -> dict[str, object]:
        """The settings of the published records."""
        return dict(self._record_writer.settings)

    def collect(self, results: Results, settled: Sequence[OutputRecord]) -> None:
        """Adds settled records of a task."""
        placed = [(place_of(record.value), record.value) for record in settled]
        results.sort(WEIGHTS, [(place, value) for place, value in placed if place is not None])

    def end_task(self, watermark_ms: int | None) -> None:
        """Ends a task; what settles at *watermark_ms* or later may be incomplete."""
        self._watermarks_ms.append(-1 if watermark_ms is None else watermark_ms)

    def lines(self, results: Results, *, ends: bool) -> Iterator[bytes]:
        """The published records; *ends* completes the last interval.

        Otherwise queries that settle after the end of any task are ignored: a live leader would
        wait for that task.
        """
        until_ms = min(self._watermarks_ms, default=-1)
        leader = OnlineLearner(self._rules, n_tasks=len(self._watermarks_ms))
        leader.merge.end()  # they come in their order already
        values = (value for _, value in results.sorted_rows(WEIGHTS))
        for batch in _batches(values):
            certain = [q for q in self._read(batch) if ends or q.settled_time_ms < until_ms]
            yield from self._records(leader.receive(certain))
        if ends:
            yield from self._records(leader.end())

    def _read(self, values: Iterable[bytes]) -> Iterator[SettledQuery]:
        for value in values:
            record = decode_settled(value, self._rules.offline_ranking.measures)
            if isinstance(record, SettledQuery):
                yield record

    def _records(self, results: Iterable[IntervalResult]) -> Iterator[bytes]:
        for each in results:
            for topic, record in self._record_writer.records(each):
                if topic == "weights-log":
                    yield record.value


def _batches(values: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch, n_bytes = list[bytes](), 0
    for value in values:
        batch.append(value)
        n_bytes += len(value)
        if len(batch) == _BATCH or n_bytes >= _BATCH_BYTES:
            yield batch
            batch, n_bytes = [], 0
    if batch:
        yield batch

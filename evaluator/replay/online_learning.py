"""The leader over what a replay has settled: the weights that a live one would have said."""

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
    """Puts settled queries of all tasks aside, in one order, and goes through them at the end."""

    def __init__(self, rules: Rules, record_writer: RecordWriter) -> None:
        self._rules = rules
        self._record_writer = record_writer
        self._watermarks_ms: list[int] = []

    @property
    def settings(self) -> dict[str, object]:
        """What the records depend on beside what has settled."""
        return dict(self._record_writer.settings)

    def put_aside(self, results: Results, settled: Sequence[OutputRecord]) -> None:
        """More of one task, in its order."""
        placed = [(place_of(record.value), record.value) for record in settled]
        results.sort(WEIGHTS, [(place, value) for place, value in placed if place is not None])

    def end_task(self, watermark_ms: int | None) -> None:
        """A task has come to its end: not all is known of it that settles at *watermark_ms*."""
        self._watermarks_ms.append(-1 if watermark_ms is None else watermark_ms)

    def lines(self, results: Results, *, ends: bool) -> Iterator[bytes]:
        """Records of weights; if time *ends*, the last interval does too.

        Else what settles where one task is not known any more is left out: a live leader waits
        for that task.
        """
        until_ms = min(self._watermarks_ms, default=-1)
        leader = OnlineLearner(self._rules, n_tasks=len(self._watermarks_ms))
        leader.merge.end()  # they come in their order already
        values = (value for _, value in results.sorted_rows(WEIGHTS))
        for batch in _batches(values):
            certain = [q for q in self._read(batch) if ends or q.settled_time_ms < until_ms]
            yield from self._said(leader.receive(certain))
        if ends:
            yield from self._said(leader.end())

    def _read(self, values: Iterable[bytes]) -> Iterator[SettledQuery]:
        for value in values:
            record = decode_settled(value, self._rules.offline_ranking.measures)
            if isinstance(record, SettledQuery):
                yield record

    def _said(self, results: Iterable[IntervalResult]) -> Iterator[bytes]:
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

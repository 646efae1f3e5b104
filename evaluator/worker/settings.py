"""Settings of the worker, and the codec of records."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field

from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import Log, Outputs
from evaluator.core.types.skips import Skips
from evaluator.ports import Lane
from evaluator.wire.messages.staged import Decoding, restored
from evaluator.wire.outputs.encoding import (
    encode_dead_letters,
    encode_evaluations,
    encode_settled,
    encode_watermark,
    encode_windows,
)
from evaluator.wire.outputs.rows import OutputRows, joined
from evaluator.wire.records import (
    FINGERPRINT_HEADER,
    GENERATION_HEADER,
    Output,
    OutputRecord,
)

Emission = dict[Lane, Sequence[OutputRecord]]
"""Records to emit, by output and partition."""


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """Settings of the worker, see docs/settings.md.

    `accept_loss` continues although the inputs no longer contain all records of a checkpoint.
    `histogram_measures` are canonical names. With `counts_positions` exposures and clicks are
    counted by position.
    """

    max_poll_records: int
    max_lead_ms: int
    idle_ms: int
    heartbeats: bool
    heartbeat_max_gap_ms: int
    heartbeat_outage_wait_ms: int
    checkpoint_interval_ms: int
    max_store_bytes: int
    accept_loss: bool = False
    skips: Skips = field(default_factory=dict)
    histogram_measures: Collection[str] = ()
    counts_positions: bool = False


class Wire(Decoding, frozen=True, kw_only=True):
    """Decodes records into columns and encodes outputs into records.

    Features also go into `settled`, for the online learner.
    """

    measures: MeasureSet
    maturity_ms: int
    window_ms: int
    emit_query: bool
    topic_names: Mapping[Log, str]
    fingerprint: str
    segment_measures: tuple[str, ...] = ()

    def encode(self, outputs: Outputs, task: int, generation: str) -> Emission:
        """Records of the outputs of one batch."""
        outputs = restored(outputs, self.stages)
        encoded: dict[Output, Sequence[OutputRecord]] = {
            "evaluations": encode_evaluations(
                outputs.evaluations, self.measures, emit_query=self.emit_query
            ),
            "settled": self._settled(outputs, task, generation),
            "windows": encode_windows(
                outputs.windows, self.measures, window_ms=self.window_ms, task=task
            ),
            "dead-letters": encode_dead_letters(
                outputs.dead_letters, self.topic_names, partition=task
            ),
        }
        return {(name, task): records for name, records in encoded.items() if records}

    def _settled(self, outputs: Outputs, task: int, generation: str) -> OutputRows:
        rows = encode_settled(
            outputs.settled, self.measures, task=task, maturity_ms=self.maturity_ms
        )
        if outputs.watermark_record is not None:
            watermark = encode_watermark(outputs.watermark_record, task=task)
            rows = joined([rows, OutputRows.of([watermark])])
        headers = (
            (GENERATION_HEADER, generation.encode()),
            (FINGERPRINT_HEADER, self.fingerprint.encode()),
        )
        return OutputRows(rows.text, rows.spans, headers)

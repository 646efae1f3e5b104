"""Record batches of output records, in private classes of aiokafka like `aiokafka_internals`."""

import itertools
import time
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record import default_records
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from evaluator.wire.outputs.rows import OutputRows
from evaluator.wire.records import OutputRecord


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/producer/message_accumulator.py#L55
def build_batch(producer: AIOKafkaProducer, records: Sequence[OutputRecord]) -> BatchBuilder:
    """A closed batch of *records*. Raises RecordListTooLargeError if they do not fit.

    Output rows are framed by the compiled part. Other records go to the builder of the library,
    without `BatchBuilder.append`, which adds 0.5 us to each.
    """
    framed = records.framed() if isinstance(records, OutputRows) else None
    if framed is not None:
        return _ReadyBatch(producer, framed, n_records=len(records))
    batch = producer.create_batch()
    keys, values, headers = zip(*records, strict=True)
    lists = map(list, headers) if any(headers) else itertools.repeat([])
    now_ms = itertools.repeat(int(time.time() * 1000))
    if not all(map(batch._builder.append, itertools.count(), now_ms, keys, values, lists)):
        raise kafka_errors.RecordListTooLargeError
    batch._relative_offset = len(records)
    batch.close()
    return batch


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/record/default_records.py#L379
class _Framed(_DefaultRecordBatchBuilderPy):  # type: ignore[misc] # untyped in the library
    """Framed records, which are compressed without a copy of them."""

    framed = memoryview(b"")

    def size(self) -> int:
        return len(self._buffer) + len(self.framed)

    def _maybe_compress(self) -> bool:
        if self._compression_type == self.CODEC_ZSTD:
            compressed = default_records.zstd_encode(self.framed)
            if len(compressed) < len(self.framed):
                self._buffer += compressed
                return True
        self._buffer += self.framed
        return self._compression_type != self.CODEC_ZSTD and bool(super()._maybe_compress())


# https://github.com/aio-libs/aiokafka/blob/v0.14.0/aiokafka/producer/message_accumulator.py#L17
class _ReadyBatch(BatchBuilder):  # type: ignore[misc] # untyped in the library
    """A closed batch of framed records, which the library gives a header."""

    def __init__(self, producer: AIOKafkaProducer, framed: memoryview, *, n_records: int) -> None:
        accumulator = producer._message_accumulator
        batch_bytes, compression = accumulator._batch_size, accumulator._compression_type
        super().__init__(batch_bytes, compression)
        self._builder = builder = _Framed(*(2, compression, 0, -1, -1, 0, batch_bytes))
        builder.framed = framed
        if n_records > 1 and builder.size() > batch_bytes:
            raise kafka_errors.RecordListTooLargeError
        builder._first_timestamp = builder._max_timestamp = int(time.time() * 1000)
        builder._num_records = self._relative_offset = n_records
        builder._last_offset = n_records - 1
        self._closed = True

    def _set_producer_state(self, *state: int) -> None:
        self._builder.set_producer_state(*state)

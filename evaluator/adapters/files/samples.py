"""Offline samples as two logs: a ranking and a judgment for each group of rows."""

from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

from evaluator.adapters.files.streams import batches_of, open_stream, records_of, size_of
from evaluator.core.types.records import LOGS, FeatureColumns, Log
from evaluator.ports import SourceUnusable
from evaluator.wire.messages.samples import SampleFeatures, SampleRefused, Samples, feature_columns
from evaluator.wire.records import Records


class SampleRange:
    """A file of samples, as a `RangeSource` with one partition.

    Rows of a group may be anywhere in the file, so all groups are in memory. *features* keeps the
    features of the rows, which are not part of the messages.
    """

    place: None = None  # files have no cluster and no topics

    def __init__(self, path: Path, *, features: bool = False) -> None:
        self._path = path
        self._features = features
        self._values: dict[Log, list[bytes]] = {log: [] for log in LOGS}
        self._of_groups: list[SampleFeatures] = []
        self.has_scores = False

    async def open(self) -> int:
        """Reads the file. Raises SourceUnusable with the number of an invalid line."""
        samples = Samples(features=self._features)
        with closing(open_stream(self._path, size_of(self._path))) as stream:
            for number, (line,) in enumerate(batches_of(stream, self._path, 1), start=1):
                try:
                    samples.add(line)
                except SampleRefused as error:
                    raise SourceUnusable(f"{self._path}, line {number}: {error}") from None
        self._values = {"rankings": samples.rankings(), "judgments": samples.judgments()}
        self._of_groups = samples.features()
        self.has_scores = samples.has_scores
        return 1

    def features_of(self, offsets: Sequence[int]) -> FeatureColumns:
        return feature_columns([self._of_groups[offset] for offset in offsets])

    async def bounds(self, log: Log, partition: int) -> tuple[int, int]:  # noqa: ARG002  # there is one
        """0 and the number of groups, or of groups with a label."""
        return 0, len(self._values[log])

    async def seek_hint(self, log: Log, partition: int, record_timestamp_ms: int) -> int:  # noqa: ARG002  # rows have no timestamps
        """Always 0: rows have no timestamps."""
        return 0

    async def read(
        self, log: Log, partition: int, start: int, end: int, *, max_records: int
    ) -> AsyncIterator[Records]:
        """Messages *start* to *end* in batches."""
        for first in range(start, min(end, len(self._values[log])), max_records):
            values = self._values[log][first : min(first + max_records, end)]
            yield records_of(log, partition, first, values)

    async def close(self) -> None:
        self._values = {log: [] for log in LOGS}
        self._of_groups = []

"""Decoders, and the stage before them: foreign records to messages, dead letters to records."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from evaluator.core.types.records import (
    Columns,
    DeadLetter,
    JudgmentColumns,
    Log,
    Outputs,
    RankingColumns,
)
from evaluator.wire.messages.codec import decode_judgments, decode_rankings
from evaluator.wire.records import Records

ColumnsT = TypeVar("ColumnsT", bound=Columns)


class Stage(Protocol):
    """Maps the records of one log; see `Columns` for `index_bits`."""

    index_bits: int

    def decoded(self, records: Records, decode: Callable[[Records], ColumnsT]) -> ColumnsT:
        """The columns of these records; *decode* reads canonical messages."""

    def restored(self, letter: DeadLetter) -> DeadLetter:
        """The dead letter of the original record, or of one of its messages."""


Stages = Mapping[Log, Stage]


class Decoding(Struct, frozen=True, kw_only=True):
    """Decodes the records of both logs, of foreign ones through their stages.

    With *features*, rankings keep their features, and the levels of *segments*.
    """

    max_future_skew_ms: int
    features: bool = False
    segments: tuple[str, ...] = ()
    stages: Stages = field(default_factory=dict)

    def rankings(self, records: Records) -> RankingColumns:
        """Columns of records of `rankings`."""
        decode = partial(
            decode_rankings,
            max_future_skew_ms=self.max_future_skew_ms,
            features=self.features,
            segments=self.segments,
        )
        return self._decoded(records, decode)

    def judgments(self, records: Records) -> JudgmentColumns:
        """Columns of records of `judgments`."""
        decode = partial(decode_judgments, max_future_skew_ms=self.max_future_skew_ms)
        return self._decoded(records, decode)

    def _decoded(self, records: Records, decode: Callable[[Records], ColumnsT]) -> ColumnsT:
        stage = self.stages.get(records.log)
        return decode(records) if stage is None else stage.decoded(records, decode)


def restored(outputs: Outputs, stages: Stages) -> Outputs:
    """The outputs with dead letters and offsets of original records."""
    if not stages:
        return outputs
    bits = stages["rankings"].index_bits if "rankings" in stages else 0
    for part in outputs.settled if bits else ():
        part.offsets = part.offsets >> bits
    letters = [
        stages[letter.log].restored(letter) if letter.log in stages else letter
        for letter in outputs.dead_letters
    ]
    return replace(outputs, dead_letters=letters)

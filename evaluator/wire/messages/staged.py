"""The stage before the decoder: foreign records to messages, and dead letters back to records."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from msgspec.structs import replace

from evaluator.core.types.records import Columns, DeadLetter, Log, Outputs
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


def decoded(
    stage: Stage | None, records: Records, decode: Callable[[Records], ColumnsT]
) -> ColumnsT:
    """The columns of records, of a foreign log through its stage."""
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

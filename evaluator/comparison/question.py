"""The options of a comparison; imports nothing, as `evaluator --help` does not compare."""

from typing import Final, Literal

from msgspec import Struct

Kind = Literal["running", "settled"]
RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95


class Question(Struct, frozen=True, kw_only=True):
    """The options of a comparison; no *rankers* or *measures*: all in the files.

    A difference fails if its interval begins below *fail_below*, or if it has no interval; that of
    a level of the segment *by* fails if its whole interval is below. With *cells* pairs are also
    counted by their values, for a plot, the means of single rankers are computed, and one
    ranker alone is not an error.
    """

    baseline: str = "served"
    rankers: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    kind: Kind = "running"
    top: int = 10
    resamples: int = RESAMPLES
    confidence: float = CONFIDENCE
    seed: int = 0
    fail_below: float | None = None
    by: str | None = None
    cells: bool = False

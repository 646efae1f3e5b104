"""Which labels have series of their own: a bounded number, and no counter ever falls."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from evaluator.core.types.records import SERVED, VALUE_BOUNDS

OTHER = "__other__"
MAX_PAIRS = 50
MAX_QUALITY_SERIES = 2_000
SERIES_PER_MEASURE = 4  # sum, queries, squares, running mean
SERIES_PER_HISTOGRAM = len(VALUE_BOUNDS) + 3  # the last bucket, sum, count
MAX_BLOCK_SERIES = MAX_QUALITY_SERIES // 3
"""Series of one ranker that leave room for one pair beside the two blocks of the rest."""
RESERVED_BLOCKS = 2  # of the overflow: the served order, and every ranker without room

Pair = tuple[str, str]  # model, variant
Block = tuple[str, str, str]  # model, variant, ranker: gets its series together


@dataclass(slots=True)
class SeriesSlots:
    """Which (model, variant) pairs have series of their own, in order of first appearance.

    Given once, kept for the life of the process, so no counter ever moves to other labels:
    room only shrinks, a pair is admitted with all its rankers or never, and the first pair
    refused closes the door. A ranker that turns up later at an admitted pair and finds no
    room counts under the overflow pair; a ranker without room there, under ranker OTHER.
    """

    max_pairs: int = MAX_PAIRS
    max_series: int = MAX_QUALITY_SERIES
    _pairs: set[Pair] = field(default_factory=set)
    _blocks: set[Block] = field(default_factory=set)
    _room: int | None = None  # blocks; unknown until the number of series of one is
    _closed: bool = False

    def admit(self, rankers: Mapping[Pair, Iterable[str]], *, series_per_block: int) -> None:
        """Gives slots to the pairs not seen before, in the order of the mapping."""
        if self._room is None and series_per_block:
            n_blocks = self.max_series // series_per_block
            self._room = max(0, n_blocks - RESERVED_BLOCKS)
        for pair, names in rankers.items():
            self._admit_pair(pair, list(names))

    def labels(self, block: Block) -> Block:
        """The labels that the series of *block* have."""
        ranker = block[2]
        if block in self._blocks:
            return block
        if ranker == SERVED or (OTHER, OTHER, ranker) in self._blocks:
            return (OTHER, OTHER, ranker)
        return (OTHER, OTHER, OTHER)

    def pair_labels(self, pair: Pair) -> Pair:
        """The labels of what is counted by pair alone."""
        return pair if pair in self._pairs else (OTHER, OTHER)

    def _admit_pair(self, pair: Pair, rankers: list[str]) -> None:
        if pair not in self._pairs:
            room = self._room or 0
            self._closed |= len(self._pairs) >= self.max_pairs or len(rankers) > room
            if not self._closed:
                self._pairs.add(pair)
        for ranker in rankers:
            own = pair in self._pairs and self._take((*pair, ranker))
            if not own and ranker != SERVED:
                self._take((OTHER, OTHER, ranker))

    def _take(self, block: Block) -> bool:
        if block not in self._blocks and self._room:
            self._blocks.add(block)
            self._room -= 1
        return block in self._blocks


def series_of_block(measures: Collection[str], histograms: Collection[str]) -> int:
    """How many series one ranker of one pair has."""
    n_histograms = len(set(measures) & set(histograms))
    return SERIES_PER_MEASURE * len(measures) + SERIES_PER_HISTOGRAM * n_histograms

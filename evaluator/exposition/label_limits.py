"""Limits of labels: the number of series is bounded, and counters never fall."""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field

from evaluator.core.types.records import OTHER, SERVED, VALUE_BOUNDS

MAX_PAIRS = 50
MAX_QUALITY_SERIES = 2_000
MAX_SEGMENT_SERIES = 1_000
"""The part of MAX_QUALITY_SERIES that series by level have, with segments."""
SERIES_PER_MEASURE = 4  # sum, queries, squares, running mean
SERIES_PER_HISTOGRAM = len(VALUE_BOUNDS) + 3  # the last bucket, sum, count
RESERVED_BLOCKS = 2  # of the overflow: the served order, and every ranker beyond the limit

Pair = tuple[str, str]  # model, variant
Block = tuple[str, str, str]  # model, variant, ranker: its series are admitted together


class LabelLimits(Struct):
    """The (model, variant) pairs that have their own series, in order of first appearance.

    A pair is admitted with all its rankers, or rejected, for the life of the process; after the
    first rejected pair all others are rejected. So no counter moves to other labels. A later ranker
    of an admitted pair that exceeds the limit counts under the overflow pair; one that exceeds the
    limit there, under ranker OTHER.
    """

    max_pairs: int = MAX_PAIRS
    max_series: int = MAX_QUALITY_SERIES
    _pairs: set[Pair] = field(default_factory=set)
    _blocks: set[Block] = field(default_factory=set)
    _n_left: int | None = None  # blocks; None until the number of series of a block is known
    _is_full: bool = False

    def admit(self, rankers: Mapping[Pair, Iterable[str]], *, series_per_block: int) -> None:
        """Admits new pairs in the order of the mapping, as far as the limits allow."""
        if self._n_left is None and series_per_block:
            self._n_left = max(0, self.max_series // series_per_block - RESERVED_BLOCKS)
        for pair, names in rankers.items():
            self._admit_pair(pair, list(names))

    def labels(self, block: Block) -> Block:
        """The labels of the series of *block*."""
        ranker = block[2]
        if block in self._blocks:
            return block
        if ranker == SERVED or (OTHER, OTHER, ranker) in self._blocks:
            return (OTHER, OTHER, ranker)
        return (OTHER, OTHER, OTHER)

    def pair_labels(self, pair: Pair) -> Pair:
        """The labels of series that are counted by pair alone."""
        return pair if pair in self._pairs else (OTHER, OTHER)

    def _admit_pair(self, pair: Pair, rankers: list[str]) -> None:
        if pair not in self._pairs:
            n_left = self._n_left or 0
            self._is_full |= len(self._pairs) >= self.max_pairs or len(rankers) > n_left
            if not self._is_full:
                self._pairs.add(pair)
        for ranker in rankers:
            own = pair in self._pairs and self._take((*pair, ranker))
            if not own and ranker != SERVED:
                self._take((OTHER, OTHER, ranker))

    def _take(self, block: Block) -> bool:
        if block not in self._blocks and self._n_left:
            self._blocks.add(block)
            self._n_left -= 1
        return block in self._blocks


def series_beside(segments: Collection[str]) -> int:
    """Limit of the quality series other than those by level of *segments*."""
    return MAX_QUALITY_SERIES - (MAX_SEGMENT_SERIES if segments else 0)


def series_of_block(measures: Collection[str], histograms: Collection[str]) -> int:
    """Number of series of one ranker of one pair."""
    n_histograms = len(set(measures) & set(histograms))
    return SERIES_PER_MEASURE * len(measures) + SERIES_PER_HISTOGRAM * n_histograms

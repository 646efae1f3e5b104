"""Writes the counters of a replay in event time to an OpenMetrics file.

Series have the names and labels of /metrics, and the labels of the run. Every minute of event time
has a sample, except idle days (docs/backfill.md).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, product
from operator import itemgetter
from typing import Final, NamedTuple

from msgspec import Struct

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import SETTLED_AS
from evaluator.core.types.records import VALUE_BOUNDS
from evaluator.exposition.label_limits import Block, LabelLimits, Pair, series_of_block
from evaluator.exposition.series import END, SPECS, Spec, clean, head, header
from evaluator.replay.history import BLOCKS, PAIRS, TERMS, SettledHistory
from evaluator.replay.results import ResultDirectory, SortKey

OPENMETRICS: Final = "openmetrics.txt"
CHANGES: Final = "openmetrics-changes"

SCORE, QUERIES, SQUARES, VALUES, SETTLED, NOTHING_RELEVANT = (
    SPECS[name]
    for name in (
        *("quality_value", "quality_queries", "quality_value_squares", "quality_values"),
        *("queries_settled", "queries_nothing_relevant"),
    )
)

# Histograms are written as separate series: the format requires all samples of a histogram with one
# timestamp together, and loaders require each series in the order of time.
BUCKETS: Final = Spec(f"{VALUES.name}_bucket", "unknown", VALUES.meaning, (*VALUES.labels, "le"))
VALUES_COUNT: Final = Spec(f"{VALUES.name}_count", "unknown", QUERIES.meaning, VALUES.labels)
VALUES_SUM: Final = Spec(f"{VALUES.name}_sum", "unknown", SCORE.meaning, VALUES.labels)
BOUNDS: Final = (*map(str, VALUE_BOUNDS), "+Inf")

FAMILIES: Final = (
    *(SCORE, QUERIES, SQUARES, BUCKETS, VALUES_COUNT, VALUES_SUM),
    *(SETTLED, NOTHING_RELEVANT),
)
OF_TERM: Final[Mapping[str, Sequence[Spec]]] = {
    "queries": (QUERIES, VALUES_COUNT),
    "sum_units": (SCORE, VALUES_SUM),
    "square_units": (SQUARES,),
}
IN_UNITS: Final = frozenset({SCORE, SQUARES, VALUES_SUM})
ROWS_AT_ONCE: Final = 1_000

Row = tuple[SortKey, bytes]
Labels = tuple[str, ...]


class Exposition(Struct, frozen=True, kw_only=True):
    """The labels and histograms of an OpenMetrics file.

    `labels` are added to those of /metrics; the default of `run` is a prefix of the chain of the
    manifest. `histograms` are canonical names of measures whose values are counted by bucket.
    """

    labels: Mapping[str, str]
    histograms: Sequence[str] = ()


class Written(NamedTuple):
    """Number of samples of a file, and the first and last of their times in seconds."""

    n_samples: int
    first_time: int | None
    last_time: int | None


class Series(NamedTuple):
    """A series and the minute of its first sample."""

    family: Spec
    labels: Labels
    began: int


class Writer:
    """Writes a history, once."""

    def __init__(self, history: SettledHistory, labels: Mapping[str, str]) -> None:
        self._history = history
        self._run_labels = {name: clean(value) for name, value in labels.items()}
        self._limits = LabelLimits()
        # Labels of blocks, in order, with the minute of their first sample.
        self._blocks: dict[Block, int] = {}
        self._pairs: dict[Pair, int] = {}
        self._admit()
        self._series = [series for family in FAMILIES for series in self._series_of(family)]
        self._written = Written(0, None, None)
        self._numbers = {(one.family, one.labels): n for n, one in enumerate(self._series)}

    def write(self, results: ResultDirectory) -> Written:
        rows = chain(self._changes_of_blocks(), self._changes_of_pairs())
        while some := list(islice(rows, ROWS_AT_ONCE)):
            results.sort(CHANGES, some)
        results.write(OPENMETRICS, self._lines(results.sorted_rows(CHANGES)))
        return self._written

    def _admit(self) -> None:
        history = self._history
        began = history.began()
        per_block = series_of_block(history.measures, history.histograms)
        for _, together in groupby(began.items(), key=lambda item: (item[1], item[0][:2])):
            blocks = [_cleaned(block) for block, _ in together]
            rankers = {blocks[0][:2]: [ranker for *_, ranker in blocks]}
            self._limits.admit(rankers, series_per_block=per_block)
        for block, minute in began.items():
            self._blocks.setdefault(self._labelled(block), minute)
            self._pairs.setdefault(self._labelled_pair(block[:2]), minute)

    def _labelled(self, block: Sequence[str]) -> Block:
        return self._limits.labels(_cleaned(block))

    def _labelled_pair(self, pair: Sequence[str]) -> Pair:
        model, variant = map(clean, pair)
        return self._limits.pair_labels((model, variant))

    def _series_of(self, family: Spec) -> Iterator[Series]:
        if family is SETTLED:
            for pair, began in self._pairs.items():
                yield from (Series(family, (*pair, judged), began) for judged in SETTLED_AS)
        elif family is NOTHING_RELEVANT:
            if self._pairs:
                yield Series(family, (), min(self._pairs.values()))
        else:
            history, of_values = self._history, {BUCKETS, VALUES_COUNT, VALUES_SUM}
            measures = history.histograms if family in of_values else history.measures
            ends = [(bound,) for bound in BOUNDS] if family is BUCKETS else [()]
            for block, began in self._blocks.items():
                for measure, le in product(measures, ends):
                    yield Series(family, (*block, measure, *le), began)

    def _changes_of_blocks(self) -> Iterator[Row]:
        for names, pieces in groupby(self._history.settled(BLOCKS), key=itemgetter(0)):
            columns = list(self._columns(self._labelled(names)))
            for _, minute, amounts in pieces:
                for number, summed in columns:
                    if amount := sum(amounts[column] for column in summed):
                        yield (number, minute), b"%d" % amount

    def _columns(self, block: Block) -> Iterator[tuple[int, Sequence[int]]]:
        """The number of each series of a block, and the numbers of the block that it sums."""
        measures, histograms = self._history.measures, self._history.histograms
        for at, measure in enumerate(measures):
            for column, term in enumerate(TERMS, start=at * len(TERMS)):
                for family in OF_TERM[term]:
                    number = self._numbers.get((family, (*block, measure)))
                    if number is not None:
                        yield number, [column]
        first = len(measures) * len(TERMS)
        for measure in histograms:
            counts = range(first, first + len(VALUE_BOUNDS))
            for upto, bound in enumerate(BOUNDS, start=1):
                yield self._numbers[BUCKETS, (*block, measure, bound)], counts[:upto]
            first = counts.stop

    def _changes_of_pairs(self) -> Iterator[Row]:
        for names, pieces in groupby(self._history.settled(PAIRS), key=itemgetter(0)):
            pair = self._labelled_pair(names)
            numbers = [
                *(self._numbers[SETTLED, (*pair, judged)] for judged in SETTLED_AS),
                self._numbers[NOTHING_RELEVANT, ()],
            ]
            for _, minute, amounts in pieces:
                for number, amount in zip(numbers, amounts, strict=True):
                    if amount:
                        yield (number, minute), b"%d" % amount

    def _lines(self, rows: Iterator[Row]) -> Iterator[bytes]:
        sampled = self._history.sampled()
        changed = groupby(rows, key=lambda row: row[0][0])
        at, changes = next(changed, (None, iter(())))
        family: Spec | None = None
        for number, series in enumerate(self._series):
            if series.family is not family:
                family = series.family
                yield from header(family)
            mine = at == number
            yield from self._samples(series, changes if mine else iter(()), sampled)
            if mine:
                at, changes = next(changed, (None, iter(())))
        yield END

    def _samples(
        self, series: Series, rows: Iterator[Row], sampled: Iterable[range]
    ) -> Iterator[bytes]:
        """The samples of a series in every sampled minute."""
        labels = dict(zip(series.family.labels, series.labels, strict=True))
        before = head(series.family.name, labels | self._run_labels)
        changes = ((int(minute), int(amount)) for (_, minute), amount in rows)
        in_units, total = series.family in IN_UNITS, 0
        change = next(changes, None)
        for minutes in sampled:
            at = max(minutes.start, series.began)
            while at < minutes.stop:
                if change is not None and change[0] <= at:
                    total += change[1]
                    change = next(changes, None)
                    continue
                until = minutes.stop if change is None else min(minutes.stop, change[0])
                self._count(at, until)
                text = repr(total / UNITS_PER_ONE if in_units else total)
                same = before + f" {text} ".encode()
                for minute in range(at, until):
                    yield same + b"%d" % (60 * minute)
                at = until
        if change is not None:
            raise AssertionError(f"minute {change[0]} has a change and no sample")

    def _count(self, first: int, end: int) -> None:
        """Counts a sample of each minute from *first* up to *end*."""
        n_samples, first_time, last_time = self._written
        first_time = 60 * first if first_time is None else min(first_time, 60 * first)
        last_time = max(last_time or 0, 60 * (end - 1))
        self._written = Written(n_samples + end - first, first_time, last_time)


def _cleaned(block: Sequence[str]) -> Block:
    model, variant, ranker = map(clean, block)
    return model, variant, ranker

"""The counters of a replay as they grew in event time, as an OpenMetrics file.

Series have the names and labels of /metrics, and beside them the labels that the run is given.
Every minute of event time has a sample, but for idle days: docs/backfill.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final, NamedTuple

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.types import VALUE_BOUNDS, Tally
from evaluator.ports import Results, SortKey
from evaluator.replay.history import BLOCKS, PAIRS, TERMS, History, Numbers
from evaluator.wire.metrics import (
    NOTHING_RELEVANT,
    QUERIES,
    SCORE,
    SETTLED,
    SQUARES,
    VALUES,
    Spec,
    clean,
)
from evaluator.wire.openmetrics import END, Checked, ExpositionError, head, header, points
from evaluator.wire.slots import Block, Pair, SeriesSlots, series_of_block

OPENMETRICS: Final = "openmetrics.txt"
CHANGES: Final = "openmetrics-changes"
FAMILIES: Final = (SCORE, QUERIES, SQUARES, VALUES, SETTLED, NOTHING_RELEVANT)
OF_TERM: Final[Mapping[str, Spec]] = {
    "queries": QUERIES,
    "sum_units": SCORE,
    "square_units": SQUARES,
}
MINUTES_OF_A_ROW: Final = 60
"""Changes of a metric are put aside by the hour."""

Row = tuple[SortKey, bytes]
Place = tuple[int, int]  # of a family in FAMILIES, of a metric in its family


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """How a replay is shown to Prometheus.

    `labels` stand beside those of /metrics; without a `run` there, one names the replay by its
    manifest. `histograms` are canonical names of measures whose values are counted by bucket.
    """

    labels: Mapping[str, str]
    histograms: Sequence[str] = ()


class Metric(NamedTuple):
    """The series of one set of labels: texts before the values, how sums become the values."""

    heads: Sequence[bytes]
    texts: Callable[[Numbers], list[bytes]]
    width: int  # numbers that are summed
    began: int  # minute of the first sample


class Writer:
    """Writes what a history has, once."""

    def __init__(self, history: History, labels: Mapping[str, str]) -> None:
        self._history = history
        self._run_labels = {name: clean(value) for name, value in labels.items()}
        self._slots = SeriesSlots()
        self._blocks: dict[Block, int] = {}  # as labelled: when they begin; in order
        self._pairs: dict[Pair, int] = {}
        self._admit()
        self._block_numbers = {block: n for n, block in enumerate(self._blocks)}
        self._pair_numbers = {pair: n for n, pair in enumerate(self._pairs)}

    def write(self, results: Results, tally: Tally) -> int:
        """Writes the file: the number of samples.

        Raises:
            ExpositionError: if the file is not what it should be, or ends with other sums than
                *tally*: a mistake in this program.
        """
        results.sort(CHANGES, self._block_rows())
        results.sort(CHANGES, self._pair_rows())
        checked = Checked()
        results.write(OPENMETRICS, checked.lines(self._lines(results.sorted_rows(CHANGES))))
        expected = self._expected(tally)
        wrong = [series for series in expected if checked.last.get(series) != expected[series]]
        if wrong:
            raise ExpositionError(f"{len(wrong)} series do not end with the totals: {wrong[:3]}")
        return checked.n_samples

    # Which series there are

    def _admit(self) -> None:
        history = self._history
        began = history.began()
        per_block = series_of_block(history.measures, history.histograms)
        for _, together in groupby(began.items(), key=lambda item: (item[1], item[0][:2])):
            blocks = [_cleaned(block) for block, _ in together]
            rankers = {blocks[0][:2]: [ranker for *_, ranker in blocks]}
            self._slots.admit(rankers, series_per_block=per_block)
        for block, minute in began.items():
            self._blocks.setdefault(self._labelled(block), minute)
            self._pairs.setdefault(self._slots.pair_labels(_cleaned(block)[:2]), minute)

    def _labelled(self, block: Sequence[str]) -> Block:
        return self._slots.labels(_cleaned(block))

    def _head(self, spec: Spec, labels: Sequence[str], suffix: str = "", **more: str) -> bytes:
        named = dict(zip(spec.labels, labels, strict=True))
        return head(spec.name + suffix, named | more | self._run_labels)

    def _metrics(self, spec: Spec) -> Iterator[Metric]:
        """The metrics of a family, in the order of their numbers."""
        history = self._history
        if spec is SETTLED:
            for pair, began in self._pairs.items():
                for judged in ("yes", "no"):
                    yield Metric([self._head(spec, (*pair, judged))], _counts, 1, began)
        elif spec is NOTHING_RELEVANT:
            if self._pairs:
                began = min(self._pairs.values())
                yield Metric([self._head(spec, ())], _counts, 1, began)
        elif spec is VALUES:
            for block, began in self._blocks.items():
                for measure in history.histograms:
                    heads = self._histogram_heads((*block, measure))
                    yield Metric(heads, _buckets, len(VALUE_BOUNDS) + 1, began)
        else:
            texts = _counts if spec is QUERIES else _units
            for block, began in self._blocks.items():
                for measure in history.measures:
                    yield Metric([self._head(spec, (*block, measure))], texts, 1, began)

    def _histogram_heads(self, labels: Sequence[str]) -> list[bytes]:
        bounds = [*map(str, VALUE_BOUNDS), "+Inf"]
        return [
            *(self._head(VALUES, labels, "_bucket", le=bound) for bound in bounds),
            self._head(VALUES, labels, "_count"),
            self._head(VALUES, labels, "_sum"),
        ]

    # How they change

    def _block_rows(self) -> Iterator[Row]:
        for names, pieces in groupby(self._history.settled(BLOCKS), key=itemgetter(0)):
            number = self._block_numbers[self._labelled(names)]
            for hour, rows in _by_hour((minute, numbers) for _, minute, numbers in pieces):
                for place, columns in self._columns_of_block(number):
                    yield from _change_row(place, hour, rows, columns)

    def _columns_of_block(self, number: int) -> Iterator[tuple[Place, list[int]]]:
        """For each metric of a block where it is, and which numbers of the block are its own."""
        measures, histograms = self._history.measures, self._history.histograms
        for n in range(len(measures)):
            for place, term in enumerate(TERMS):
                family = FAMILIES.index(OF_TERM[term])
                yield (family, number * len(measures) + n), [n * len(TERMS) + place]
        family, n_bounds = FAMILIES.index(VALUES), len(VALUE_BOUNDS)
        for n, name in enumerate(histograms):
            first = len(measures) * len(TERMS) + n * n_bounds
            sums = measures.index(name) * len(TERMS) + TERMS.index("sum_units")
            columns = [*range(first, first + n_bounds), sums]
            yield (family, number * len(histograms) + n), columns

    def _pair_rows(self) -> Iterator[Row]:
        settled, nothing = FAMILIES.index(SETTLED), FAMILIES.index(NOTHING_RELEVANT)
        for names, pieces in groupby(self._history.settled(PAIRS), key=itemgetter(0)):
            model, variant = map(clean, names)
            number = self._pair_numbers[self._slots.pair_labels((model, variant))]
            for hour, rows in _by_hour((minute, numbers) for _, minute, numbers in pieces):
                yield from _change_row((settled, 2 * number), hour, rows, [0])
                yield from _change_row((settled, 2 * number + 1), hour, rows, [1])
                yield from _change_row((nothing, 0), hour, rows, [2])

    # The file

    def _lines(self, rows: Iterator[Row]) -> Iterator[bytes]:
        sampled = self._history.sampled()
        changes_of = groupby(rows, key=lambda row: row[0][:2])
        place, changes = next(changes_of, (None, iter(())))
        for family, spec in enumerate(FAMILIES):
            if spec is VALUES and not self._history.histograms:
                continue
            yield from header(spec)
            for number, metric in enumerate(self._metrics(spec)):
                mine = place == (family, number)
                yield from _samples(metric, _changes(changes if mine else (), metric), sampled)
                if mine:
                    place, changes = next(changes_of, (None, iter(())))
        if place is not None:
            raise ExpositionError(f"changes of a metric that is not there: {place}")
        yield END

    def _expected(self, tally: Tally) -> dict[bytes, bytes]:
        """What series should end with, by what the engines have counted."""
        sums: dict[tuple[Spec, tuple[str, ...]], int] = {}
        at: tuple[Spec, tuple[str, ...]]
        for path, number in tally.items():
            if path[0] == "settled":
                *block, measure, term = path[1:]
                at = OF_TERM[term], (*self._labelled(block), measure)
            elif path[0] == "settled_queries":
                model, variant, judged = map(clean, path[1:])
                at = SETTLED, (*self._slots.pair_labels((model, variant)), judged)
            elif path == ("extra", "nothing_relevant") and self._pairs:
                at = NOTHING_RELEVANT, ()
            else:
                continue
            sums[at] = sums.get(at, 0) + number
        expected = {}
        for (spec, labels), number in sums.items():
            (text,) = _units([number]) if spec in {SCORE, SQUARES} else _counts([number])
            expected[self._head(spec, labels)] = text
            if spec is QUERIES and labels[-1] in self._history.histograms:
                expected[self._head(VALUES, labels, "_count")] = text
            if spec is SCORE and labels[-1] in self._history.histograms:
                expected[self._head(VALUES, labels, "_sum")] = text
        return expected


def _cleaned(block: Sequence[str]) -> Block:
    model, variant, ranker = map(clean, block)
    return model, variant, ranker


# Texts of sums


def _counts(numbers: Numbers) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def _units(numbers: Numbers) -> list[bytes]:
    return [repr(number / UNITS_PER_ONE).encode() for number in numbers]


def _buckets(numbers: Numbers) -> list[bytes]:
    """Of counts in the buckets and a sum: all up to each bound, up to infinity, all, the sum."""
    *counts, sum_units = numbers
    upto = list(accumulate(counts))
    return _counts([*upto, upto[-1], upto[-1]]) + _units([sum_units])


# Changes, put aside and taken out


def _by_hour(
    pieces: Iterable[tuple[int, Numbers]],
) -> Iterator[tuple[int, list[tuple[int, Numbers]]]]:
    """Hours with the numbers of their minutes, added up where a minute comes in pieces."""
    for hour, inside in groupby(pieces, key=lambda piece: piece[0] // MINUTES_OF_A_ROW):
        sums: dict[int, Numbers] = {}
        for minute, numbers in inside:
            before = sums.get(minute)
            sums[minute] = (
                numbers
                if before is None
                else [old + new for old, new in zip(before, numbers, strict=True)]
            )
        yield hour, sorted(sums.items())


def _change_row(
    place: Place, hour: int, rows: Iterable[tuple[int, Numbers]], columns: Sequence[int]
) -> Iterator[Row]:
    """The changes of one metric in one hour: each minute, and what came then; none, no row."""
    changes = [
        (minute, *added)
        for minute, numbers in rows
        if any(added := [numbers[column] for column in columns])
    ]
    if changes:
        text = " ".join(" ".join(map(str, change)) for change in changes)
        yield (*place, hour), text.encode()


def _changes(rows: Iterable[Row], metric: Metric) -> Iterator[tuple[int, Numbers]]:
    """Minutes and what came then, in order of time."""

    def pieces() -> Iterator[tuple[int, Numbers]]:
        for _, line in rows:
            numbers = [*map(int, line.split())]
            for at in range(0, len(numbers), metric.width + 1):
                yield numbers[at], numbers[at + 1 : at + 1 + metric.width]

    for _, minutes in _by_hour(pieces()):
        yield from minutes


def _samples(
    metric: Metric, changes: Iterator[tuple[int, Numbers]], sampled: Iterable[range]
) -> Iterator[bytes]:
    """The samples of a metric, from its beginning on, in every sampled minute."""
    sums = [0] * metric.width
    values = metric.texts(sums)
    change = next(changes, None)
    for minutes in sampled:
        at = max(minutes.start, metric.began)
        while at < minutes.stop:
            if change is not None and change[0] <= at:
                sums = [old + new for old, new in zip(sums, change[1], strict=True)]
                values = metric.texts(sums)
                change = next(changes, None)
                continue
            until = minutes.stop if change is None else min(minutes.stop, change[0])
            yield from points(metric.heads, values, range(60 * at, 60 * until, 60))
            at = until
    if change is not None:
        raise ExpositionError(f"a change in minute {change[0]}, which has no sample")

"""Series of settled and running values, summed by label."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.samples import Exemplar

from evaluator.adapters.prometheus.levels import LevelSeries
from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import SETTLED_AS
from evaluator.core.types.records import VALUE_BOUNDS
from evaluator.core.types.segments import NO_SEGMENTS, SegmentRules
from evaluator.core.types.tally import Group, GroupedTally, Path
from evaluator.exposition.label_limits import Block, LabelLimits, Pair, series_of_block
from evaluator.exposition.series import clean
from evaluator.exposition.snapshot import Snapshot

LONGEST_EXEMPLAR: Final = 128 - len("trace_id")
"""Characters; OpenMetrics limits name and value together."""

Samples = Iterable[tuple[Any, ...]]
"""Labels, in the order of the spec, and a value; of a histogram its buckets and its sum."""

Quality = dict[Path, Counter[str]]
"""Exact sums in units of 2^-40, by model, variant, ranker and measure."""
_LENGTHS: Final = (2, 3)
"""Of the groups of pairs, and of their histograms."""
_COUNTERS: Final = -1
"""The counters of the process, as opposed to those of its tasks."""


class QualitySeries:
    """Sums by label as of the last snapshot; the next one adds only what has changed since.

    Args:
        limits: admits new pairs. The labels of a series never change.
        histograms: the measures with a histogram.
        segments: the segments with series by level.
    """

    def __init__(
        self,
        limits: LabelLimits,
        *,
        histograms: Collection[str] = (),
        segments: SegmentRules = NO_SEGMENTS,
    ) -> None:
        self._limits = limits
        self._levels = LevelSeries(limits, segments)
        self._histograms = histograms
        self._seen: dict[int, Mapping[Group, Mapping[Path, int]]] = {}
        self._measures: set[str] = set()
        self._settled: Quality = {}
        self._running: Quality = {}
        self._queries: Counter[Path] = Counter()
        self._buckets: Counter[Path] = Counter()
        self._positions: dict[str, Counter[Path]] = {"exposures": Counter(), "clicks": Counter()}

    def series(
        self, snapshot: Snapshot, of_leader: Mapping[tuple[str, ...], int]
    ) -> dict[str, Samples]:
        """Samples by name in SPECS; *of_leader* are the counts of the leader."""
        published = [
            ((clean(key[1]), "", key[2]), key[3], key[4], n)  # of any variant
            for key, n in of_leader.items()
            if key[0] == "values"
        ]
        self._update(snapshot, {(block, measure): None for block, measure, _, _ in published})
        ranked = {path: Counter(sums) for path, sums in self._settled.items()}
        for block, measure, name, n in published:
            ranked.setdefault((*self._limits.labels(block), measure), Counter())[name] += n
        return {
            "quality_value": [(path, s["sum_units"] / UNITS_PER_ONE) for path, s in ranked.items()],
            "quality_queries": [(path, s["queries"]) for path, s in ranked.items()],
            "quality_value_squares": [
                (path, s["square_units"] / UNITS_PER_ONE) for path, s in self._settled.items()
            ],
            "running_value_mean": [
                (path, s["sum_units"] / (s["queries"] * UNITS_PER_ONE))
                for path, s in self._running.items()
                if s["queries"]
            ],
            "quality_values": self._histogram_samples(snapshot),
            "queries_settled": self._queries.items(),
            **{name: counts.items() for name, counts in self._positions.items()},
            **self._levels.series(snapshot),
        }

    def _update(self, snapshot: Snapshot, others: Mapping[tuple[Block, str], None]) -> None:
        now = {_COUNTERS: snapshot.counters, **{view.task: view.tally for view in snapshot}}
        changed = [
            (source, before, after)
            for source in {**now, **self._seen}
            for before, after in self._changed(source, now.get(source))
        ]
        known = (
            (_block_of(path), path[4])
            for _, before, after in changed
            if len(after) > len(before)
            for path in after
            if path[0] in ("settled", "running")
        )
        # With all measures: the first admitted block determines how many series one needs.
        self._admit({**dict.fromkeys(known), **others})
        for source, before, after in changed:
            self._add(source, before, after)
        self._seen = {source: tally.groups for source, tally in now.items()}

    def _changed(
        self, source: int, tally: GroupedTally | None
    ) -> Iterator[tuple[Mapping[Path, int], Mapping[Path, int]]]:
        """Each group that is not the one of the last snapshot, with that one."""
        seen, none = self._seen.get(source, {}), dict[Path, int]()
        groups = {} if tally is None else tally.groups
        for group, part in groups.items():
            if len(group) in _LENGTHS and seen.get(group) is not part:
                yield seen.get(group, none), part
        for group in seen.keys() - groups.keys():
            if len(group) in _LENGTHS:
                yield seen[group], none

    def _admit(self, known: Mapping[tuple[Block, str], None]) -> None:
        rankers: dict[Pair, dict[str, None]] = {}
        for (model, variant, ranker), measure in known:
            rankers.setdefault((model, variant), {})[ranker] = None
            self._measures.add(measure)
        self._limits.admit(
            rankers, series_per_block=series_of_block(self._measures, self._histograms)
        )

    def _add(self, source: int, before: Mapping[Path, int], after: Mapping[Path, int]) -> None:
        """Replaces the figures of a group of a source."""
        labels: dict[Path, Path] = {}
        grown = len(after) > len(before)
        for path in after if len(after) >= len(before) else {**before, **after}:
            kind, figure = path[0], after.get(path, 0) - before.get(path, 0)
            if not (figure or grown):
                continue
            if kind in {"settled_queries", "position"}:
                pair = self._limits.pair_labels((clean(path[1]), clean(path[2])))
                counts = self._queries if kind == "settled_queries" else self._positions[path[3]]
                counts[*pair, path[-1]] += figure if source == _COUNTERS else 0
                continue
            block = labels.get(path[1:4])
            if block is None:
                block = labels[path[1:4]] = self._limits.labels(_block_of(path))
                pair = self._limits.pair_labels((clean(path[1]), clean(path[2])))
                for judged in SETTLED_AS:
                    self._queries.setdefault((*pair, judged), 0)
            if kind == "bucket":
                if source == _COUNTERS:
                    self._buckets[*block, *path[4:]] += figure
                continue
            series = *block, path[4]
            settled = self._settled.setdefault(series, Counter())
            if kind == "settled" and source == _COUNTERS:
                settled[path[5]] += figure
            elif kind == "running" and source != _COUNTERS:
                self._running.setdefault(series, Counter())[path[5]] += figure

    def _histogram_samples(self, snapshot: Snapshot) -> Samples:
        """Labels, buckets and sum; buckets are counted when queries settle, so they add up."""
        exemplars: dict[Path, Exemplar] = {}
        for key, (trace_id, units) in snapshot.exemplars.items():
            if len(trace_id) <= LONGEST_EXEMPLAR:
                path = (*self._limits.labels(_block_of(key)), *key[4:])
                exemplars[path] = Exemplar({"trace_id": clean(trace_id)}, units / UNITS_PER_ONE)
        for path, sums in self._settled.items():
            if path[-1] not in self._histograms:
                continue
            so_far, buckets = 0, list[tuple[Any, ...]]()
            for index, bound in enumerate(VALUE_BOUNDS):
                place = (*path, str(index))
                so_far += self._buckets[place]
                exemplar = [exemplars[place]] if place in exemplars else []
                buckets.append((str(bound), so_far, *exemplar))
            yield path, [*buckets, ("+Inf", so_far)], sums["sum_units"] / UNITS_PER_ONE


def _block_of(path: Path) -> Block:
    return clean(path[1]), clean(path[2]), clean(path[3])

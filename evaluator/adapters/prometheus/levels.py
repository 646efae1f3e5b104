"""Series of settled values by level: declared and large levels, the rest folded."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from evaluator.core.measures import UNITS_PER_ONE
from evaluator.core.measures.exact_sums import SETTLED_AS
from evaluator.core.types.records import OTHER, SERVED
from evaluator.core.types.segments import SegmentRules
from evaluator.core.types.tally import LEVEL_KINDS, Group, Path
from evaluator.exposition.label_limits import MAX_SEGMENT_SERIES, Block, LabelLimits
from evaluator.exposition.series import clean
from evaluator.exposition.snapshot import Snapshot

LEAST_QUERIES: Final = 100
LEAST_SHARE: Final = 0.01
"""Settled queries, and share of those of its segment, from which a level has its own series."""

LevelBlock = tuple[str, str, str, str, str]
"""Model, variant, ranker, segment, level: its series are admitted together."""


class LevelSeries:
    """Sums by level as of the last snapshot.

    Declared levels have their own series from their first ranking on, others when they are large,
    as far as there is room, for the life of the process. Until then they count under OTHER, so no
    counter falls or moves. Without room for OTHER of a ranker, model and variant are OTHER too.
    """

    def __init__(
        self, limits: LabelLimits, rules: SegmentRules, *, max_series: int = MAX_SEGMENT_SERIES
    ) -> None:
        self._limits = limits
        self._rules = rules
        self._n_left = max_series
        self._measures: dict[str, None] = {}
        self._seen: dict[Group, Mapping[Path, int]] = {}
        self._n_settled: Counter[tuple[str, ...]] = Counter()  # by segment, and by level
        self._own: set[LevelBlock] = set()
        self._values: dict[Path, Counter[str]] = {}
        self._queries: Counter[Path] = Counter()

    def series(self, snapshot: Snapshot) -> dict[str, list[tuple[Any, ...]]]:
        """Samples by name in SPECS."""
        changed = list(self._changed(snapshot))
        for path, n in changed:
            if path[0] == "segment_settled_queries":
                self._n_settled[path[3],] += n
                self._n_settled[path[3:5]] += n
            elif path[0] == "segment_settled":
                self._measures[path[6]] = None
        blocks = dict.fromkeys(self._block(path) for path, _ in changed)
        for block in sorted(blocks, key=lambda each: (-self._n_settled[each[3:]], each)):
            self._admit(block)
        for path, n in changed:
            self._add(path, n)
        return {
            "segment_value": [(p, s["sum_units"] / UNITS_PER_ONE) for p, s in self._values.items()],
            "segment_queries": [(p, s["queries"]) for p, s in self._values.items()],
            "segment_queries_settled": list(self._queries.items()),
        }

    def _changed(self, snapshot: Snapshot) -> Iterator[tuple[Path, int]]:
        """The increase of every settled sum by level since the last snapshot, 0 for a new one."""
        for group, part in snapshot.counters.groups.items():
            before = self._seen.get(group, {})
            if len(group) == len(("model", "variant", "segment", "level")) and before is not part:
                self._seen[group] = part
                for path, n in part.items():
                    if path[0] in LEVEL_KINDS and path[0] != "segment_running":
                        yield path, n - before.get(path, 0)

    def _block(self, path: Path) -> LevelBlock:
        ranker = path[5] if path[0] == "segment_settled" else SERVED
        block: Block = clean(path[1]), clean(path[2]), clean(ranker)
        return (*self._limits.labels(block), path[3], path[4])

    def _admit(self, block: LevelBlock) -> None:
        segment, level = block[3:]
        n, of_segment = self._n_settled[segment, level], self._n_settled[segment,]
        large = n >= max(LEAST_QUERIES, LEAST_SHARE * of_segment)
        if not self._own:  # for levels without room
            for name in self._rules.names:
                self._take((OTHER, OTHER, SERVED, name, OTHER))
        if self._take((*block[:4], OTHER)) and (large or self._rules.is_declared(segment, level)):
            self._take(block)

    def _take(self, block: LevelBlock) -> bool:
        n_series = 2 * len(self._measures) + (len(SETTLED_AS) if block[2] == SERVED else 0)
        if block not in self._own and n_series <= self._n_left:
            self._own.add(block)
            self._n_left -= n_series
        return block in self._own

    def _shown(self, block: LevelBlock) -> LevelBlock:
        """The labels of the series of *block*."""
        if block in self._own:
            return block
        other = (*block[:4], OTHER)
        return other if other in self._own else (OTHER, OTHER, SERVED, block[3], OTHER)

    def _add(self, path: Path, n: int) -> None:
        model, variant, ranker, *rest = self._shown(self._block(path))
        level = tuple(map(clean, rest))
        if path[0] == "segment_settled_queries":
            self._queries[model, variant, *level, path[5]] += n
        else:
            labels = (model, variant, ranker, path[6], *level)
            self._values.setdefault(labels, Counter())[path[7]] += n

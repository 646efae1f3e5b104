"""Compares rankers of one or two replays on their common queries."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from tqdm import tqdm

from evaluator.comparison.folder import NO_LEVEL, Evaluations, HashArray, read_folder, size_of
from evaluator.comparison.levels import compare_levels, mix_of
from evaluator.comparison.paired import paired_for
from evaluator.comparison.question import Question
from evaluator.comparison.report import (
    Cell,
    Change,
    Comparison,
    Level,
    Mean,
    Mix,
    Report,
    SourceFacts,
)
from evaluator.comparison.warnings import warnings_of
from evaluator.core.types.records import FloatArray, IntArray
from evaluator.ports import RequestRefused, SourceUnusable
from evaluator.tables import printable

GRID: Final = 40
"""Cells of a plot of pairs on each side."""


def compare(folders: Sequence[Path], question: Question) -> Report:
    """Compares rankers on the same queries, with a bar on stderr if that is a terminal.

    Args:
        folders: one: rankers of the same replay; two: the baseline of the first and the rankers
            of the second, joined by (trace_id, node_id, event_time_ms).
        question: the options of the comparison.
    Raises:
        RequestRefused: if a ranker or measure is not in the files.
        SourceUnusable: if a folder is unreadable, or has no pair to compare.
    """
    sources = _read(folders, question)
    first, second = sources[0], sources[-1]
    measures = _measures(sources, question)
    rankers = _rankers(sources, question)
    wanted = [(ranker, name) for ranker in rankers for name in measures]
    if len(sources) == 1:
        first_rows = second_rows = np.arange(len(first))
    else:
        first_rows, second_rows = common_rows(first.keys, second.keys)
        _require_common(first, second, len(first_rows))
    _require_levels(sources, question.by)
    pairs = _Pairs(first, second, first_rows, second_rows)
    with tqdm(wanted, desc="resample", unit="", disable=None) as bar:
        comparisons = [pairs.compare(ranker, measure, question) for ranker, measure in bar]
    _require_pairs(comparisons, question)
    common, judged_differently = len(first_rows), pairs.judged_differently
    means: list[Mean] = []
    if question.cells:
        alone = not rankers
        places = [path.name for path in folders] if len(folders) > 1 else [""]
        means += means_of(first, [question.baseline], measures, question, places[0], details=alone)
        means += means_of(second, rankers, measures, question, places[-1], details=False)
    return Report(
        question=question,
        sources=tuple(
            SourceFacts(rows=len(one), chain=one.manifest.chain if one.manifest else None)
            for one in sources
        ),
        common=common,
        judged_differently=judged_differently,
        comparisons=tuple(comparisons),
        warnings=tuple(
            warnings_of(
                sources,
                comparisons,
                judged_differently=judged_differently,
                common=common,
                levels_differ=pairs.levels_differ if question.by else 0,
            )
        ),
        means=tuple(means),
    )


def _read(folders: Sequence[Path], question: Question) -> list[Evaluations]:
    size_bytes = sum(size_of(folder, question.kind) for folder in folders)
    others = set(question.rankers) or None  # None: all of them
    if len(folders) == 1:
        wanted = [others and {question.baseline, *others}]
    else:
        wanted = [{question.baseline}, others]
    with tqdm(total=size_bytes, desc="compare", unit="B", unit_scale=True, disable=None) as bar:
        return [
            read_folder(
                folder,
                question.kind,
                rankers=rankers,
                measures=set(question.measures) or None,
                with_grades=len(folders) > 1,
                on_read=lambda block: bar.update(len(block)),
                by=question.by,
            )
            for folder, rankers in zip(folders, wanted, strict=True)
        ]


def _rankers(sources: Sequence[Evaluations], question: Question) -> list[str]:
    """The rankers to compare with the baseline. Raises RequestRefused, SourceUnusable."""
    first, second = sources[0], sources[-1]
    for source in sources:
        if not source.rankers:
            raise SourceUnusable(
                f"{source.path} has no query with a value: no query was judged in time. "
                "Replay a longer range, or one that begins earlier."
            )
    _require_known("ranker", [question.baseline], first.rankers, first)
    _require_known("ranker", question.rankers, second.rankers, second)
    asked = list(question.rankers or second.rankers)
    if first is not second:
        return asked
    if question.baseline in question.rankers and not question.cells:
        raise RequestRefused(
            f"{question.baseline} is the baseline; --ranker names the other side. To compare it "
            "with itself in another replay, give a second --source."
        )
    asked = [ranker for ranker in asked if ranker != question.baseline]
    if not asked and not question.cells:
        raise SourceUnusable(
            f"{first.path} has only the ranker {question.baseline}, so it cannot be compared with "
            "another. Give a second --source, or send named scorers with the rankings."
        )
    return asked


def _measures(sources: Sequence[Evaluations], question: Question) -> list[str]:
    """The measures to compare. Raises RequestRefused, SourceUnusable."""
    for source in sources:
        if source.measures:
            _require_known("measure", question.measures, source.measures, source)
    if question.measures:
        return list(question.measures)
    shared = [name for name in sources[0].measures if name in sources[-1].measures]
    if not shared and all(source.measures for source in sources):
        raise SourceUnusable(
            "the two sources have no measure in common: the first has "
            f"{', '.join(sources[0].measures)}, the second {', '.join(sources[-1].measures)}. "
            "Replay both with the same --set measures=…"
        )
    return shared


def _require_known(
    what: str, asked: Sequence[str], known: Sequence[str], source: Evaluations
) -> None:
    for name in asked:
        if name not in known:
            names = ", ".join(map(printable, known))
            raise RequestRefused(f"{source.path} has no {what} {name}. It has: {names}.")


def common_rows(first: HashArray, second: HashArray) -> tuple[IntArray, IntArray]:
    """The rows of common keys in both, in the order of the first; keys are unique `[n_rows, 2]`."""
    keys = np.concatenate([first, second])
    order = np.lexsort(keys.T)  # stable: of two equal keys the one of the first comes first
    same = np.flatnonzero((keys[order[1:]] == keys[order[:-1]]).all(axis=1))
    rows, others = order[same], order[same + 1] - len(first)
    in_order = np.argsort(rows)
    return rows[in_order], others[in_order]


def _require_common(first: Evaluations, second: Evaluations, common: int) -> None:
    if not common:
        raise SourceUnusable(
            f"{first.path} and {second.path} have no query in common: no row of {len(first):,} "
            f"and of {len(second):,} has the same trace_id, node_id and event_time_ms. Replay the "
            "same traffic for both."
        )


def _require_levels(sources: Sequence[Evaluations], by: str | None) -> None:
    if by is not None and not any(source.level_names for source in sources):
        raise RequestRefused(
            f"{sources[0].path} has no level of the segment {by}. Replay with --set segments={by}, "
            "of rankings that have it (docs/segments.md)."
        )


def _require_pairs(comparisons: Sequence[Comparison], question: Question) -> None:
    if comparisons and all(comparison.paired is None for comparison in comparisons):
        counts = "; ".join(
            f"{one.ranker} {one.measure}: {one.only_baseline:,} queries with {question.baseline} "
            f"only, {one.only_ranker:,} with {one.ranker} only"
            for one in comparisons[:3]
        )
        raise SourceUnusable(
            f"no query has values of both {question.baseline} and another ranker ({counts}), so "
            "no pair can be compared. Choose another --baseline or --ranker."
        )


def means_of(
    source: Evaluations,
    rankers: Sequence[str],
    measures: Sequence[str],
    question: Question,
    place: str,
    *,
    details: bool,
) -> Iterator[Mean]:
    """The means for a page: of each ranker and measure over its queries, as a difference from 0.

    *place* is the name of the directory, if there are two. With *details* it also has the levels of
    the segment and the queries with the lowest values.
    """
    for ranker in rankers:
        for measure in measures:
            column = _column(source, ranker, measure)
            rows = np.flatnonzero(~np.isnan(column))
            if not len(rows):
                continue
            values, zeros, traces = column[rows], np.zeros(len(rows)), source.traces[rows]
            levels: tuple[Level, ...] = ()
            lowest: list[int] = []
            if details and question.by is not None:
                of_rows, names = source.levels[rows], source.level_names
                levels = compare_levels(of_rows, names, zeros, values, traces, question)
            if details:
                lowest = np.argsort(values, kind="stable")[: question.top].tolist()
            yield Mean(
                ranker=ranker,
                measure=measure,
                place=place,
                paired=paired_for(question, zeros, values, traces),
                levels=levels,
                lowest=tuple((float(values[at]), source.shown(int(rows[at]))) for at in lowest),
            )


class _Pairs:
    """The common queries of two sources, or of one source twice."""

    def __init__(
        self, first: Evaluations, second: Evaluations, first_rows: IntArray, second_rows: IntArray
    ) -> None:
        self._first, self._second = first, second
        self._first_rows, self._second_rows = first_rows, second_rows
        self._other_grades = first.grades[first_rows] != second.grades[second_rows]
        self._level_names = tuple(dict.fromkeys((*first.level_names, *second.level_names)))
        place_of = {name: place for place, name in enumerate(self._level_names)}
        places = np.array([place_of[name] for name in second.level_names] + [NO_LEVEL], np.int64)
        self._second_levels: IntArray = places[second.levels]  # NO_LEVEL is the last place

    @property
    def judged_differently(self) -> int:
        """Number of queries with different grades in both sources."""
        return int(self._other_grades.sum())

    @property
    def levels_differ(self) -> int:
        """Number of queries with different levels in both sources."""
        second = self._second_levels[self._second_rows]
        return int((self._first.levels[self._first_rows] != second).sum())

    def compare(self, ranker: str, measure: str, question: Question) -> Comparison:
        all_baseline = _column(self._first, question.baseline, measure)
        all_other = _column(self._second, ranker, measure)
        baseline, other = all_baseline[self._first_rows], all_other[self._second_rows]
        both = np.flatnonzero(~(np.isnan(baseline) | np.isnan(other)))
        baseline, other = baseline[both], other[both]
        result, mix = None, None
        levels: tuple[Level, ...] = ()
        if len(both):
            traces = self._first.traces[self._first_rows][both]
            result = paired_for(question, baseline, other, traces)
            if question.by is not None:
                of_pairs = self._first.levels[self._first_rows][both]
                names = self._level_names
                levels = compare_levels(of_pairs, names, baseline, other, traces, question)
                mix = self._mix(all_baseline, all_other)
        return Comparison(
            ranker=ranker,
            measure=measure,
            paired=result,
            only_baseline=int((~np.isnan(all_baseline)).sum()) - len(both),
            only_ranker=int((~np.isnan(all_other)).sum()) - len(both),
            changes=tuple(
                self._change(int(both[at]), float(baseline[at]), float(other[at]))
                for at in most_changed(other - baseline, question.top)
            ),
            levels=levels,
            mix=mix,
            cells=tuple(cells_of(baseline, other)) if question.cells else (),
        )

    def _mix(self, baseline: FloatArray, other: FloatArray) -> Mix:
        first, second = ~np.isnan(baseline), ~np.isnan(other)
        levels = self._first.levels[first], self._second_levels[second]
        return mix_of(baseline[first], levels[0], other[second], levels[1])

    def _change(self, pair: int, baseline_value: float, ranker_value: float) -> Change:
        first_row = self._first.shown(int(self._first_rows[pair]))
        second_row = (
            first_row
            if self._first is self._second
            else self._second.shown(int(self._second_rows[pair]))
        )
        return Change(
            difference=ranker_value - baseline_value,
            baseline_value=baseline_value,
            ranker_value=ranker_value,
            judged_differently=bool(self._other_grades[pair]),
            baseline_row=first_row,
            ranker_row=second_row,
        )


def _column(source: Evaluations, ranker: str, measure: str) -> FloatArray:
    """The values of a ranker and measure, `[n_rows]`; all NaN without any."""
    column = source.values.get((ranker, measure))
    return np.full(len(source), np.nan) if column is None else column


def cells_of(baseline: FloatArray, other: FloatArray) -> Iterator[Cell]:
    """Counts of pairs by both values, rounded to a grid over [0, 1], or to the largest above 1.

    >>> list(cells_of(np.array([0.5, 0.5]), np.array([1.0, 1.0])))
    [Cell(baseline=0.5, other=1.0, pairs=2)]
    """
    both = np.stack([baseline, other])
    extent = both.max(initial=1.0)
    rounded = np.rint(both / extent * GRID) / GRID * extent
    places, counts = np.unique(rounded, axis=1, return_counts=True)
    for (one, two), n in zip(places.T.tolist(), counts.tolist(), strict=True):
        yield Cell(one, two, n)


def most_changed(differences: FloatArray, top: int) -> IntArray:
    """Up to *top* places of the largest absolute differences above 0; of equal ones the first."""
    size = np.abs(differences)
    order = np.argsort(-size, kind="stable")[:top]
    return order[size[order] > 0]

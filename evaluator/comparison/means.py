"""The means of single rankers, with intervals: for the page of a report."""

from collections.abc import Iterator, Sequence

import numpy as np

from evaluator.comparison.folder import Evaluations
from evaluator.comparison.levels import compare_levels
from evaluator.comparison.paired import paired_for
from evaluator.comparison.question import Question
from evaluator.comparison.report import Level, Mean


def means_of(
    source: Evaluations,
    rankers: Sequence[str],
    measures: Sequence[str],
    question: Question,
    place: str,
    *,
    details: bool,
) -> Iterator[Mean]:
    """The mean of each ranker and measure over its queries with a value: a difference from 0.

    *place* is the name of the directory, if there are two. With *details* it also has the levels of
    the segment and the queries with the lowest values.
    """
    for ranker in rankers:
        for measure in measures:
            column = source.values.get((ranker, measure))
            if column is None or np.isnan(column).all():
                continue
            rows = np.flatnonzero(~np.isnan(column))
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

"""What linear weights would have ranked, measured by the kernel that measures everything else."""

from collections.abc import Sequence

import numpy as np

from evaluator.core.grades import GradeColumns
from evaluator.core.groups import linear_scores
from evaluator.core.measures import MISSING, MeasureSet
from evaluator.core.mentions import Mentions
from evaluator.core.merge import SettledQuery
from evaluator.core.scoring import new_scoring
from evaluator.core.subtopics import Subtopics
from evaluator.core.types import SERVED, FloatArray, IntArray, RankingColumns


class Contest:
    """Measures orders of candidates that nobody has served.

    Subtopics and ages of candidates are not known here: measures that need subtopics have no
    value, and gains do not shrink with age.

    Args:
        measures, empty, ties, judged_only: as of `Engine`.
    """

    def __init__(
        self,
        measures: MeasureSet,
        *,
        empty: str = "zero",
        ties: str = "id",
        judged_only: bool = False,
    ) -> None:
        self.measures = measures
        self._empty = empty
        self._ties = ties
        self._judged_only = judged_only

    def units(self, queries: Sequence[SettledQuery], weights: Sequence[float]) -> IntArray:
        """Values of judged queries in units, `[n_queries, n_measures]`, if *weights* had ranked.

        All queries have one feature for each weight. MISSING where there is no value, as where a
        score is beyond what a number can hold.
        """
        units = np.full((len(queries), len(self.measures.canonical)), MISSING, np.int64)
        if not queries:
            return units
        features = np.concatenate([query.features for query in queries])
        with np.errstate(over="ignore", invalid="ignore"):
            scores = linear_scores(features.T, weights) + 0.0
        counts = np.array([len(query.features) for query in queries], np.int64)
        bad = np.repeat(np.arange(len(queries)), counts)[~np.isfinite(scores)]
        scored = np.setdiff1d(np.arange(len(queries)), bad)
        chosen = [queries[place] for place in scored.tolist()]
        if chosen:
            kept = scores[np.isin(np.repeat(np.arange(len(queries)), counts), scored)]
            units[scored] = self._measured(chosen, kept, counts[scored])
        return units

    def _measured(
        self, queries: Sequence[SettledQuery], scores: FloatArray, counts: IntArray
    ) -> IntArray:
        held, scoring = new_scoring(self.measures, self._empty, self._ties, self._judged_only, 0)
        rankings = _rankings(queries, scores, counts)
        keys = [(query.trace_id, query.node_id) for query in queries]
        slots = held.hold(
            held.arrive(rankings, keys, rankings.timestamps_ms), np.arange(len(queries))
        )
        grades = GradeColumns.of([dict(query.grades) for query in queries])
        held.judged.replace(slots, held.coded(grades), 0)
        spans = held.spans(slots)
        subtopics: list[Subtopics] | None = [{} for _ in queries] if held.has_subtopics else None
        results = scoring.measure(spans, held.judged_codes, held.judged_grades, subtopics)
        units = results.reshape(len(queries), -1)[:, :-1].copy()
        units[~scoring.have_value(spans, held.judged_grades)] = MISSING
        return units


def _rankings(
    queries: Sequence[SettledQuery], scores: FloatArray, counts: IntArray
) -> RankingColumns:
    """The queries as rankings with these scores."""
    n = len(queries)
    nowhere = np.empty(0, np.int64)
    return RankingColumns(
        offsets=np.arange(n),
        timestamps_ms=np.array([query.event_time_ms for query in queries], np.int64),
        trace_ids=[query.trace_id for query in queries],
        node_ids=[query.node_id for query in queries],
        hashes=[bytes(16)] * n,
        keys=[None] * n,
        values=[b""] * n,
        heartbeat_offsets=nowhere,
        heartbeat_timestamps_ms=nowhere,
        malformed=[],
        next_offset=n,
        models=[""] * n,
        variants=[""] * n,
        queries=[""] * n,
        rankers=[(SERVED,)] * n,
        candidate_counts=counts,
        candidate_ids=Mentions.of([name for query in queries for name in query.candidate_ids]),
        scores=scores,
        explicit_ranks={},
    )

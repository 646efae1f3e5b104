"""A run of the engine over a world in pieces, recorded for comparison."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, TypeVar

from evaluator.core.engine.engine import Engine
from evaluator.core.measures import MeasureSet, Terms
from evaluator.core.types.records import (
    DeadLetter,
    EvaluationColumns,
    FinalWindow,
    IntArray,
    JudgmentColumns,
    Outputs,
    RankingColumns,
    SettledColumns,
)
from evaluator.core.types.segments import SegmentRules
from evaluator.core.types.tally import Tally
from evaluator.worker.monitoring import ValueHistograms
from tests.engines import engine_of
from tests.oracle.columns import judgment_columns, ranking_columns
from tests.oracle.measures import top_three
from tests.oracle.messages import JudgmentsRecord, RankingsRecord, Raw
from tests.oracle.oracle import Task, judge
from tests.oracle.pieces import Step
from tests.oracle.rules import Evaluation, Query, Settings
from tests.oracle.worlds import World, records_of

Identity = tuple[int, str, str]
"""(event time, trace_id, node_id) of a query."""

LACKING = -1
"""The units of a value that a query lacks."""

T = TypeVar("T")
Batch = tuple[RankingColumns | None, JudgmentColumns | None]

EXACT_SECTIONS = {
    "rankings", "judgments", "dead_letters", "queries", "running", "settled", "settled_queries",
    "extra", "segment_running", "segment_settled", "segment_settled_queries",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EmittedEvaluation:
    """An emitted evaluation; `text` has all of it, including the order of grades and all types."""

    revision: int
    content: dict[str, Any]
    text: str


@dataclass(slots=True)
class Run:
    """An engine with all its outputs so far."""

    settings: Settings
    engine: Engine
    evaluations: dict[tuple[Identity, int], EmittedEvaluation] = field(default_factory=dict)
    last: dict[Identity, EmittedEvaluation] = field(default_factory=dict)
    finished: dict[Identity, EmittedEvaluation] = field(default_factory=dict)
    settled: list[dict[str, Any]] = field(default_factory=list)
    windows: list[FinalWindow] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    seen: ValueHistograms | None = None

    def __post_init__(self) -> None:
        if self.seen is None:
            measures = MeasureSet.parse(list(self.settings.measures)).canonical
            self.seen = ValueHistograms(measures, counted=(), warned=set(), positions=True)

    def add_outputs(self, outputs: Outputs) -> None:
        """Records the outputs of a batch; no output may be repeated or withdrawn."""
        for identity, emitted in emitted_evaluations(outputs.evaluations):
            before = self.last.get(identity)
            assert before is None or before.revision < emitted.revision, ("revision", identity)
            self.evaluations[identity, emitted.revision] = self.last[identity] = emitted
        for identity, emitted in emitted_evaluations(outputs.finished):
            assert identity not in self.finished, ("finished twice", identity)
            self.finished[identity] = emitted
        numbered = settled_rows(outputs.settled)
        first_n = len(self.settled)
        assert sorted(numbered) == list(range(first_n, first_n + len(numbered))), "settled numbers"
        self.settled += [numbered[n] for n in sorted(numbered)]
        self.seen.add(outputs.settled)
        self.windows += outputs.windows
        self.dead_letters += outputs.dead_letters

    def remaining(self) -> dict[Identity, EmittedEvaluation]:
        return dict(emitted_evaluations(list(self.engine.remaining())))


def new_run(settings: Settings, *, expire: bool = True, finished: bool = True) -> Run:
    """An engine that has read nothing."""
    return Run(settings, new_engine(settings, expire=expire, finished=finished))


def new_engine(settings: Settings, *, task: int = 0, **more: Any) -> Engine:
    """An engine that has read nothing; *more* are further arguments."""
    measures = MeasureSet.parse(
        list(settings.measures),
        scales=Terms(
            map_graded_max_grade=settings.map_graded_max_grade,
            err_max_grade=settings.err_max_grade,
            ips_clip=settings.ips_clip,
        ),
    )
    return engine_of(
        measures,
        task=task,
        retention_ms=settings.retention_ms,
        maturity_ms=settings.maturity_ms,
        early_ms=settings.early_ms,
        remember_ms=settings.remember_ms,
        out_of_orderness_ms=settings.out_of_orderness_ms,
        window_ms=settings.window_ms,
        empty=settings.empty,
        judged_only=settings.judged_only,
        freshness_half_life_ms=settings.freshness_half_life_ms,
        evaluations=True,
        max_judgments=settings.max_applied,
        max_candidates=settings.max_graded,
        silence=settings.silence,
        grades_merge=settings.grades_merge,
        grades_merge_by_source=settings.grades_merge_by_source,
        **{"segments": segment_rules(settings), **more},
    )


def segment_rules(settings: Settings) -> SegmentRules:
    """The rules of the engine."""
    declared = {
        segment: frozenset(level for name, level in settings.segment_levels if name == segment)
        for segment in settings.segments
    }
    return SegmentRules(settings.segments, declared, settings.segment_measures, settings.max_levels)


class Reader:
    """Reads the records of a world in batches, as columns."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rankings, self.judgments = records_of(world)

    def batch(self, read: Step, step: Step) -> Batch:
        """The next *step* records after *read*; a log without any is absent or empty."""
        (i, j), (n, m) = read, step
        rankings = self.world.rankings[i : i + n]
        judgments = self.world.judgments[j : j + m]
        empty = (i + j) % 3 == 0
        return (
            self.ranking_batch(self.rankings[i : i + n], rankings, end(self.world.rankings, i + n))
            if rankings or (empty and i)
            else None,
            self.judgment_batch(
                self.judgments[j : j + m], judgments, end(self.world.judgments, j + m)
            )
            if judgments or (empty and j)
            else None,
        )

    def judged(self, read: Step) -> Task:
        """The oracle's task for prefixes of this many records."""
        return judge(self.rankings[: read[0]], self.judgments[: read[1]], self.world.settings)

    def ranking_batch(
        self, records: Sequence[RankingsRecord], raws: Sequence[Raw], next_offset: int
    ) -> RankingColumns:
        return ranking_columns(records, raws, next_offset)

    def judgment_batch(
        self, records: Sequence[JudgmentsRecord], raws: Sequence[Raw], next_offset: int
    ) -> JudgmentColumns:
        return judgment_columns(records, raws, next_offset)


def end(raws: Sequence[Raw], n_read: int) -> int:
    """The next offset after this many records."""
    return raws[min(n_read, len(raws)) - 1].offset + 1


def feed(run: Run, reader: Reader, steps: Iterable[Step]) -> Iterable[Step]:
    """Runs in batches, and yields the numbers of records of both logs read so far."""
    read = (0, 0)
    for step in steps:
        run.add_outputs(run.engine.receive(*reader.batch(read, step)))
        read = (read[0] + step[0], read[1] + step[1])
        yield read


# -- actual outputs -----------------------------------------------------------------------------


def emitted_evaluations(
    parts: Iterable[EvaluationColumns],
) -> list[tuple[Identity, EmittedEvaluation]]:
    """Evaluations by identity."""
    rows = []
    for columns in parts:
        times_ms, revisions = columns.event_times_ms.tolist(), columns.revisions.tolist()
        trace_ids, node_ids = columns.texts.column(0), columns.texts.column(1)
        for b, content in enumerate(evaluation_rows(columns)):
            text = repr((content, list(columns.grades[b].items())))
            identity = times_ms[b], trace_ids[b], node_ids[b]
            rows.append((identity, EmittedEvaluation(revisions[b], content, text)))
    return rows


def evaluation_rows(columns: EvaluationColumns) -> list[dict[str, Any]]:
    """The queries of the flat columns."""
    n_rows, n_rankers, n_top = len(columns), len(columns.rankers), columns.n_top
    queries, strata = columns.texts.column(2), columns.strata.values(0, n_rows)
    scores = [None if isnan(score) else score for score in columns.top_scores.tolist()]
    best = zip(columns.top_ids.values(), scores, strict=True)
    first_ranks = parts_of(columns.first_ranks.tolist(), n_rows, n_rankers)
    tops = parts_of(list(best), n_rows, n_rankers * n_top)
    units = units_of(columns.units, n_rows)
    return [
        {
            "stratum": tuple(strata[b]),
            "query": queries[b],
            "grades": dict(columns.grades[b]),
            "first_ranks": first_ranks[b],
            "top": [tops[b][r * n_top : (r + 1) * n_top] for r in range(n_rankers)],
            "units": units[b],
        }
        for b in range(n_rows)
    ]


def parts_of(flat: Sequence[T], n_rows: int, width: int) -> list[list[T]]:
    """The rows of a row-major list."""
    assert len(flat) == n_rows * width
    return [list(flat[b * width : (b + 1) * width]) for b in range(n_rows)]


def units_of(flat: IntArray | None, n_rows: int) -> list[list[int] | None]:
    """The values of each row; the columns are of any width."""
    if flat is None or not n_rows:
        return [None] * n_rows
    return list(parts_of(flat.tolist(), n_rows, len(flat) // n_rows))


def settled_rows(parts: Iterable[SettledColumns]) -> dict[int, dict[str, Any]]:
    """Settled queries by n."""
    rows = {}
    for columns in parts:
        texts, strata = columns.texts, columns.strata.values(0, len(columns))
        times_ms, offsets = columns.event_times_ms.tolist(), columns.offsets.tolist()
        identities = list(zip(times_ms, texts.column(0), texts.column(1), strict=True))
        units = units_of(columns.units, len(columns))
        for b, n in enumerate(columns.ns.tolist()):
            assert n not in rows, "settled numbers"
            rows[n] = {
                "identity": identities[b],
                "offset": offsets[b],
                "stratum": tuple(strata[b]),
                "grades": dict(columns.grades[b]),
                "units": units[b],
                "silent": columns.silent is not None and bool(columns.silent[b]),
            }
    return rows


# -- expected outputs ---------------------------------------------------------------------------


def expected_content(query: Query, evaluation: Evaluation) -> dict[str, Any]:
    """The content of `EmittedEvaluation` by the oracle."""
    ranking = query.ranking
    return {
        "stratum": (ranking.model, ranking.variant, ranking.rankers),
        "query": ranking.query,
        "grades": dict(evaluation.grades),
        "first_ranks": [evaluation.first_ranks[ranker] for ranker in ranking.rankers],
        "top": [top_three(ranking, ranker) for ranker in ranking.rankers],
        "units": flat_units(query, evaluation),
    }


def flat_units(query: Query, evaluation: Evaluation) -> list[int] | None:
    """Units of all rankers and measures, ranker-major."""
    units = evaluation.units
    if units is None:
        return None
    columns = query.settings.columns
    return [
        units.get((ranker, measure), LACKING)
        for ranker in query.ranking.rankers
        for measure in columns
    ]


def expected_settled(query: Query) -> dict[str, Any]:
    """One row of `settled_rows` by the oracle."""
    evaluation = query.settled_evaluation
    return {
        "identity": query.identity,
        "offset": query.ranking.offset,
        "stratum": (query.ranking.model, query.ranking.variant, query.ranking.rankers),
        "grades": dict(evaluation.grades),
        "units": flat_units(query, evaluation),
        "silent": query.silent,
    }


def counted(tally: Tally) -> Tally:
    """The entries defined by the contract, without zeros."""
    return {path: count for path, count in tally.items() if count and path[0] in EXACT_SECTIONS}

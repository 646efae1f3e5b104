"""The rules of docs/semantics.md, one function for each sentence.

No function processes records in order of time. An event time depends on the earlier records of its
log; all else depends on event times and on the final watermark.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import accumulate

from tests.oracle import measures
from tests.oracle.messages import (
    Heartbeat,
    Judgment,
    JudgmentsRecord,
    Malformed,
    Ranking,
    RankingsRecord,
)

MINUS_INFINITY = float("-inf")
PLUS_INFINITY = float("inf")
Watermark = int | float  # an int, or one of the infinities: exact comparisons in Python
Key = tuple[str, str]
AnyRecord = RankingsRecord | JudgmentsRecord


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that change the meaning; durations are in milliseconds."""

    retention_ms: int = 86_400_000
    maturity_ms: int = 3_600_000
    early_ms: int = 60_000
    remember_ms: int = 3_600_000
    out_of_orderness_ms: int = 300_000
    window_ms: int = 60_000
    measures: tuple[str, ...] = ("top1", "top3", "mrr", "ndcg@10", "map@10")
    empty: str = "zero"
    judged_only: bool = False
    freshness_half_life_ms: int = 0
    map_graded_max_grade: int = 2
    err_max_grade: int = 4
    max_applied: int = 1_000
    max_graded: int = 10_000
    silence: str = "unjudged"
    ips_clip: float = 20.0
    segments: tuple[str, ...] = ()
    segment_levels: tuple[tuple[str, str], ...] = ()
    segment_measures: tuple[str, ...] = ()
    max_levels: int = 1_000
    grades_merge: str = "last"
    grades_merge_by_source: tuple[tuple[str, str], ...] = ()

    @property
    def key_reserved_ms(self) -> int:
        return self.retention_ms + self.remember_ms + self.early_ms

    @property
    def columns(self) -> tuple[str, ...]:
        """Canonical names without repetition, in order of first mention, with companions."""
        return canonical_names(self.spellings)

    @property
    def level_columns(self) -> tuple[str, ...]:
        """The columns of sums by level."""
        if not self.segment_measures:
            return self.columns
        return canonical_names(self.segment_measures)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The names of the values in outputs."""
        return with_companions(self.measures)


@cache
def canonical_names(spellings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(measures.canonical, spellings)))


@cache
def with_companions(spellings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in spellings for name in measures.shown(each)))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A query at one revision.

    `units` by (ranker, measure) is None without a value, and has no measure without a value.
    """

    revision: int
    grades: Mapping[str, float]
    first_ranks: Mapping[str, int]
    units: Mapping[tuple[str, str], int] | None


@dataclass
class Query:
    """A ranking that started a query, and the judgments of the prefixes.

    Its values are valid once all judgments are added.
    """

    ranking: Ranking
    event_time_ms: int
    settings: Settings
    watermark: Watermark
    applied: list[Judgment] = field(default_factory=list)
    judgment_times: Mapping[int, int] = field(default_factory=dict)
    log_times: Sequence[int] = ()  # event times of all judgments of the log, sorted

    @property
    def identity(self) -> tuple[int, str, str]:
        """(event time, trace_id, node_id): the order of the task; no two queries share it."""
        return (self.event_time_ms, *self.ranking.key)

    @property
    def levels(self) -> list[tuple[str, str]]:
        """(segment, level) of the configured segments."""
        return [each for each in self.ranking.segments if each[0] in self.settings.segments]

    @property
    def revision(self) -> int:
        return len(self.applied)

    @property
    def expired(self) -> bool:
        """Whether the query is open: until watermark > event time + retention."""
        return self.watermark > self.event_time_ms + self.settings.retention_ms

    @property
    def settled(self) -> bool:
        """Whether the query is settled: when watermark > event time + maturity."""
        return self.watermark > self.settled_time_ms

    @property
    def settled_time_ms(self) -> int:
        return self.event_time_ms + self.settings.maturity_ms

    @property
    def window_start_ms(self) -> int:
        return self.event_time_ms // self.settings.window_ms * self.settings.window_ms

    def evaluation_at(self, revision: int) -> Evaluation:
        """The evaluation after the first *revision* applied judgments."""
        return evaluate(self.ranking, self.event_time_ms, self.applied[:revision], self.settings)

    @cached_property
    def running(self) -> Evaluation:
        """The evaluation of the last revision."""
        return self.evaluation_at(self.revision)

    @cached_property
    def in_time(self) -> list[Judgment]:
        """The applied judgments that count for the settled value."""
        times = self.judgment_times
        return [j for j in self.applied if times[j.offset] <= self.settled_time_ms]

    @cached_property
    def settled_evaluation(self) -> Evaluation:
        """The settled evaluation; without grades, the query is unjudged."""
        evaluation = evaluate(
            self.ranking, self.event_time_ms, self.in_time, self.settings, self.zero, self.silent
        )
        if evaluation.units is None:
            return evaluation
        return replace(
            evaluation, units={**evaluation.units, **self.seen_units, **self.click_units}
        )

    @property
    def click_units(self) -> dict[tuple[str, str], int]:
        """Values of weighted clicks, `ips_...`, of every ranker, if the ranking has propensities.

        A candidate graded above 0 by maturity weighs 1/p, at most `ips_clip`, with p of its mention
        in the served order; `ips_dcg@k` multiplies by D(rank) if its rank for this ranker is at
        most k.
        """
        if not any(name.startswith("ips_") for name in self.settings.columns):
            return {}
        propensities = json.loads(self.ranking.value).get("propensities")
        if propensities is None:
            return {}
        grades, clip = merged_grades(self.in_time, self.settings), self.settings.ips_clip
        p_of = {
            self.ranking.candidate_ids[at]: propensities[at]
            for at in measures.order(self.ranking, "served")
            if grades.get(self.ranking.candidate_ids[at], 0) > 0
        }
        weight_of = {name: min(1 / p, clip) for name, p in p_of.items()}
        units = {}
        for ranker in self.ranking.rankers:
            ranked = measures.ranked_ids(self.ranking, ranker)
            for name in self.settings.columns:
                family, _, k = name.partition("@")
                gains = [
                    weight_of[each] * (measures.discount(rank) if k else 1)
                    for rank, each in enumerate(ranked, start=1)
                    if each in weight_of and (not k or rank <= int(k))
                ]
                if family in ("ips_dcg", "ips_clicks"):
                    units[ranker, name] = measures.units(float(sum(map(Fraction, gains))))
                if family == "ips_clipped" and p_of:
                    clipped = sum(1 for p in p_of.values() if 1 / p > clip)
                    units[ranker, name] = measures.units(clipped / len(p_of))
        return units

    @property
    def seen_units(self) -> dict[tuple[str, str], int]:
        """Values of the served order over exposed candidates: `ctr@k` and `abandoned`."""
        asked = {name.partition("@")[0] for name in self.settings.columns}
        if not asked & {"ctr", "abandoned"} or self.exposed is None:
            return {}
        units = {("served", "abandoned"): measures.units(float(self.silent))}
        grades, kept = (
            merged_grades(self.in_time, self.settings),
            measures.order(self.ranking, "served"),
        )
        for name in self.settings.columns:
            family, _, k = name.partition("@")
            seen = [at for at in kept[: int(k or 0)] if at in self.exposed]
            if family == "ctr" and seen:
                clicked = [at for at in seen if grades.get(self.ranking.candidate_ids[at], 0) > 0]
                units["served", name] = measures.units(len(clicked) / len(seen))
        return {key: value for key, value in units.items() if key[1] in self.settings.columns}

    @property
    def in_log(self) -> bool:
        """Whether any judgment, whatever its outcome, is in (event time, settled time]."""
        until_then, until_settled = (
            bisect_right(self.log_times, ms) for ms in (self.event_time_ms, self.settled_time_ms)
        )
        return until_then < until_settled

    @cached_property
    def zero(self) -> list[str]:
        """Exposed candidates without a grade by maturity: with `silence = zero` they get 0.

        There are none if no judgment of the log is `in_log`.
        """
        if self.settings.silence != "zero" or not self.in_log or self.exposed is None:
            return []
        graded = merged_grades(self.in_time, self.settings)
        ids = self.ranking.candidate_ids
        return [ids[at] for at in sorted(self.exposed) if ids[at] not in graded]

    @cached_property
    def exposed(self) -> set[int] | None:
        """Positions of exposed candidates; for repeated ones, that of the best-ranked mention."""
        message, kept = json.loads(self.ranking.value), measures.order(self.ranking, "served")
        if message.get("exposed_top") is not None:
            return set(kept[: message["exposed_top"]])
        if message.get("exposed") is not None:
            return {at for at in kept if message["exposed"][at]}
        return None

    @property
    def seen(self) -> list[tuple[str, str, str, str]]:
        """The exposed candidates at ranks 1 to 10, and those of them graded above 0 by maturity.

        They are (model, variant, "exposures" or "clicks", rank) of a settled query with a value.
        """
        if self.exposed is None or self.settled_evaluation.units is None:
            return []
        ids, grades = self.ranking.candidate_ids, merged_grades(self.in_time, self.settings)
        found = []
        for rank, at in enumerate(measures.order(self.ranking, "served")[:10], start=1):
            names = ("exposures", "clicks") if grades.get(ids[at], 0) > 0 else ("exposures",)
            if at in self.exposed:
                found += [(self.ranking.model, self.ranking.variant, n, str(rank)) for n in names]
        return found

    @cached_property
    def silent(self) -> bool:
        """Whether no candidate has a grade, although one was exposed or the ranking had none."""
        if merged_grades(self.in_time, self.settings):
            return False
        empty = not self.ranking.candidate_ids and self.exposed is not None and self.in_log
        return bool(self.zero) or (empty and self.settings.silence == "zero")


# -- event times, clocks, watermark -------------------------------------------------------------


def well_formed(log: Sequence[AnyRecord]) -> list[Heartbeat | Ranking | Judgment]:
    """Drops malformed records, which neither advance a clock nor belong to a query."""
    return [record for record in log if not isinstance(record, Malformed)]


def clocks_before(log: Sequence[AnyRecord]) -> list[Watermark]:
    """For each well-formed record: the largest timestamp among those before it in its log."""
    timestamps = [record.timestamp_ms for record in well_formed(log)]
    return [MINUS_INFINITY, *accumulate(timestamps, max)][: len(timestamps)]


def event_times(log: Sequence[AnyRecord], out_of_orderness_ms: int) -> dict[int, int]:
    """Event time by offset = max(timestamp, clock before - out of orderness)."""
    return {
        record.offset: max(record.timestamp_ms, bound(before, out_of_orderness_ms))
        for record, before in zip(well_formed(log), clocks_before(log), strict=True)
    }


def bound(clock_before: Watermark, out_of_orderness_ms: int) -> int:
    """The oldest event time that a record can have; below every timestamp for the first one."""
    if isinstance(clock_before, int):
        return clock_before - out_of_orderness_ms
    return -1


def out_of_order(log: Sequence[AnyRecord], out_of_orderness_ms: int) -> int:
    """Messages whose event time is not their timestamp. Heartbeats only advance a clock."""
    times = event_times(log, out_of_orderness_ms)
    messages = [record for record in well_formed(log) if not isinstance(record, Heartbeat)]
    return sum(1 for record in messages if times[record.offset] > record.timestamp_ms)


def clock(log: Sequence[AnyRecord]) -> int | None:
    """The clock of a log; None before its first timestamp."""
    return max((record.timestamp_ms for record in well_formed(log)), default=None)


def watermark_of(
    rankings: Sequence[RankingsRecord],
    judgments: Sequence[JudgmentsRecord],
    out_of_orderness_ms: int,
) -> Watermark:
    """The watermark; minus infinity before both logs have a clock."""
    clocks = clock(rankings), clock(judgments)
    if clocks[0] is None or clocks[1] is None:
        return MINUS_INFINITY
    return min(clocks[0], clocks[1]) - out_of_orderness_ms


# -- rankings -----------------------------------------------------------------------------------


def ranking_outcomes(rankings: Sequence[RankingsRecord], settings: Settings) -> dict[int, str]:
    """The outcome of each ranking by offset: started, duplicate or conflicting."""
    times = event_times(rankings, settings.out_of_orderness_ms)
    namings: dict[Key, list[Ranking]] = defaultdict(list)
    outcomes = {}
    for ranking in (record for record in rankings if isinstance(record, Ranking)):
        earlier = namings[ranking.key]
        outcomes[ranking.offset] = outcome_of_ranking(ranking, earlier, times, settings)
        earlier.append(ranking)
    return outcomes


def outcome_of_ranking(
    ranking: Ranking, earlier: Sequence[Ranking], times: Mapping[int, int], settings: Settings
) -> str:
    """The outcome after *earlier*, all earlier rankings of its key in the log with any outcome."""
    if not earlier:
        return "started"
    taken_until_ms = max(times[named.offset] for named in earlier) + settings.key_reserved_ms
    if times[ranking.offset] > taken_until_ms:
        return "started"
    return "duplicate" if ranking.value == earlier[-1].value else "conflicting"


# -- judgments ----------------------------------------------------------------------------------


def belongs(age_ms: int, settings: Settings) -> bool:
    return -settings.early_ms <= age_ms <= settings.retention_ms


def is_late(age_ms: int, settings: Settings) -> bool:
    return settings.retention_ms < age_ms <= settings.retention_ms + settings.remember_ms


def home(
    event_time_ms: int, queries: Sequence[Query], watermark: Watermark, settings: Settings
) -> Query | str:
    """The query that a judgment belongs to, or late, orphan or early.

    *queries* are all queries of its key, read before or after it. Their intervals
    [-early, retention + remember] never overlap, because a key is free only beyond
    `key_reserved_ms`; so the result is unique. It does not depend on presence in a store.
    """
    near = [q for q in queries if belongs(event_time_ms - q.event_time_ms, settings)]
    behind = [q for q in queries if is_late(event_time_ms - q.event_time_ms, settings)]
    if len(near) + len(behind) > 1:
        raise AssertionError(f"a judgment at {event_time_ms} has two homes: {near} {behind}")
    if near:
        return near[0]
    if behind:
        return "late"
    return "orphan" if watermark > event_time_ms + settings.early_ms else "early"


def same_judgment(one: Judgment, other: Judgment) -> bool:
    """Whether two judgments are the same: by id, whatever the source; without ids by bytes."""
    if one.judgment_id is None and other.judgment_id is None:
        return one.value == other.value
    return one.judgment_id == other.judgment_id


def outcome_at_home(judgment: Judgment, applied: Sequence[Judgment], settings: Settings) -> str:
    """The outcome of a judgment, by comparison with the earlier applied judgments of its query."""
    for earlier in applied:
        if same_judgment(judgment, earlier):
            return "duplicate" if judgment.value == earlier.value else "conflicting"
    named = {name for each in (*applied, judgment) for name, _ in each.grades}
    fits = len(applied) < settings.max_applied and len(named) <= settings.max_graded
    return "applied" if fits else "over_limit"


def merged_grades(
    judgments: Iterable[Judgment], settings: Settings | None = None
) -> dict[str, float]:
    """Merged grades: those of a candidate after its last withdrawal; a withdrawn one is unjudged.

    The order is (timestamp, offset). The grades of the source with the latest one count: the
    largest if that source merges by `max`, else the latest. Candidates are in order of first
    application.
    """
    judgments, settings = list(judgments), settings or Settings()
    standing: dict[str, list[tuple[str, float]]] = {
        name: [] for judgment in judgments for name, _ in judgment.grades
    }
    for judgment in sorted(judgments, key=lambda j: (j.timestamp_ms, j.offset)):
        for name, grade in judgment.grades:
            if grade is None:
                standing[name] = []
            else:
                standing[name].append((judgment.source, grade))
    merged = {}
    for name, given in standing.items():
        if given:
            last = given[-1][0]
            of_source = [grade for source, grade in given if source == last]
            rule = dict(settings.grades_merge_by_source).get(last, settings.grades_merge)
            merged[name] = max(of_source) if rule == "max" else of_source[-1]
    return merged


# -- values -------------------------------------------------------------------------------------


def merged_subtopics(ranking: Ranking, judgments: Iterable[Judgment]) -> dict[str, tuple[str, ...]]:
    """The subtopics of each candidate by the latest judgment with any, or else by the ranking."""
    judged_topics: dict[str, tuple[str, ...] | None] = {}
    for judgment in sorted(judgments, key=lambda j: (j.timestamp_ms, j.offset)):
        judged_topics.update(judgment.subtopics)
    standing = {name: topics for name, topics in ranking.subtopics if topics is not None}
    standing |= {name: topics for name, topics in judged_topics.items() if topics is not None}
    return standing


def evaluate(
    ranking: Ranking,
    event_time_ms: int,
    judgments: Sequence[Judgment],
    settings: Settings,
    zero: Sequence[str] = (),
    silent: bool = False,
) -> Evaluation:
    """The evaluation of a query with these judgments; without grades it has no value.

    Candidates in *zero* also have grade 0. A silent query has a value even without candidates.
    """
    grades = {**merged_grades(judgments, settings), **dict.fromkeys(zero, 0.0)}
    first_ranks = {
        ranker: measures.first_relevant_rank(measures.ranked_ids(ranking, ranker), grades)
        for ranker in ranking.rankers
    }
    values = None
    if silent or has_value(grades, settings):
        known = measures.Known(
            grades=tuple(sorted(grades.items())),
            subtopics=tuple(sorted(merged_subtopics(ranking, judgments).items())),
            event_time_ms=event_time_ms,
            judged_only=settings.judged_only,
            freshness_half_life_ms=settings.freshness_half_life_ms,
            map_graded_max_grade=settings.map_graded_max_grade,
            err_max_grade=settings.err_max_grade,
        )
        values = {
            (ranker, measure): units
            for ranker in ranking.rankers
            for measure in settings.columns
            if (units := measures.value_units(ranking, ranker, measure, known)) is not None
        }
    return Evaluation(len(judgments), grades, first_ranks, values)


def has_value(grades: Mapping[str, float], settings: Settings) -> bool:
    """Whether there is a value: with `empty = skip`, only with a relevant candidate."""
    return bool(grades) and (settings.empty == "zero" or measures.n_relevant(grades) > 0)

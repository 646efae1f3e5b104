"""The expected state of a task after two prefixes, from the set of their records: `judge`."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from tests.oracle import measures
from tests.oracle.messages import (
    Heartbeat,
    Judgment,
    JudgmentsRecord,
    Log,
    Malformed,
    Ranking,
    RankingsRecord,
)
from tests.oracle.rules import (
    MINUS_INFINITY,
    PLUS_INFINITY,
    AnyRecord,
    Key,
    Query,
    Settings,
    Watermark,
    clock,
    event_times,
    home,
    out_of_order,
    outcome_at_home,
    ranking_outcomes,
    watermark_of,
)

__all__ = ["MINUS_INFINITY", "PLUS_INFINITY", "Query", "Settings", "Tally", "Task", "judge"]

Tally = dict[tuple[str, ...], int]
OTHER = "__other__"


@dataclass(slots=True)
class Window:
    """Exact running sums of one event-time window by (model, variant, ranker, measure)."""

    start_ms: int
    final: bool
    sums: dict[tuple[str, str, str, str], tuple[int, int]]  # queries, sum_units


@dataclass(slots=True)
class Task:
    """The state of one task as defined by the two prefixes."""

    settings: Settings
    rankings: Sequence[RankingsRecord]
    judgments: Sequence[JudgmentsRecord]
    clocks_ms: dict[Log, int | None]
    watermark: Watermark
    queries: list[Query]  # in the order (event time, trace_id, node_id)
    ranking_outcomes: dict[int, str]
    judgment_outcomes: dict[int, str]

    @property
    def settled(self) -> list[Query]:
        """The settled sequence: its index is n."""
        return [query for query in self.queries if query.settled]

    @property
    def open(self) -> list[Query]:
        return [query for query in self.queries if not query.expired]

    @property
    def expired(self) -> list[Query]:
        return [query for query in self.queries if query.expired]

    @property
    def windows(self) -> list[Window]:
        """Every window in which a query started, by start; rows have queries with a value."""
        by_start: dict[int, list[Query]] = defaultdict(list)
        for query in self.queries:
            by_start[query.window_start_ms].append(query)
        return [self.window(start_ms, members) for start_ms, members in sorted(by_start.items())]

    def window(self, start_ms: int, members: Sequence[Query]) -> Window:
        """Final when watermark > start + window - 1 + retention."""
        last_ms = start_ms + self.settings.window_ms - 1
        sums = running_sums(members)
        return Window(
            start_ms,
            self.watermark > last_ms + self.settings.retention_ms,
            {row: (queries, total) for row, (queries, total) in sums.items()},
        )

    @property
    def dead_letters(self) -> set[tuple[Log, int, str]]:
        """(log, offset, reason) of all records without effect, except duplicates."""
        named = {"late", "orphan", "conflicting", "over_limit"}
        letters: set[tuple[Log, int, str]] = set()
        letters |= {("rankings", r.offset, r.reason) for r in malformed(self.rankings)}
        letters |= {("judgments", r.offset, r.reason) for r in malformed(self.judgments)}
        letters |= {("rankings", o, w) for o, w in self.ranking_outcomes.items() if w in named}
        letters |= {("judgments", o, w) for o, w in self.judgment_outcomes.items() if w in named}
        return letters

    def tally(self) -> Tally:
        """Every exact count and sum by path."""
        return (
            self.ledger()
            | self.query_counts()
            | {("extra", "out_of_order"): self.out_of_order()}
            | {("extra", "nothing_relevant"): self.nothing_relevant()}
            | {
                ("dead_letters", reason): count
                for reason, count in Counter(r for _, _, r in self.dead_letters).items()
            }
            | self.totals()
            | fold(self.level_totals(), self.settings)
        )

    def ledger(self) -> Tally:
        """The ledgers of both logs; `read` is counted separately, to check the sums."""
        rankings = Counter(self.ranking_outcomes.values())
        judgments = Counter(self.judgment_outcomes.values())
        counts: dict[Log, dict[str, int]] = {
            "rankings": {
                **other_records(self.rankings),
                **{name: rankings[name] for name in ("duplicate", "conflicting")},
                "open": len(self.open),
                "expired": len(self.expired),
            },
            "judgments": {
                **other_records(self.judgments),
                **{
                    name: judgments[name]
                    for name in (
                        "duplicate",
                        "conflicting",
                        "late",
                        "orphan",
                        "over_limit",
                        "early",
                        "applied",
                    )
                },
            },
        }
        return {(log, name): n for log, by_name in counts.items() for name, n in by_name.items()}

    def query_counts(self) -> Tally:
        """Counts of the started queries by state."""
        silent = sum(1 for query in self.settled if query.silent)
        judged = sum(1 for q in self.settled if q.settled_evaluation.grades and not q.silent)
        return {
            ("queries", "started"): len(self.queries),
            ("queries", "with_value"): sum(1 for q in self.queries if q.running.grades),
            ("queries", "settled"): len(self.settled),
            ("queries", "settled_judged"): judged,
            ("queries", "settled_silent"): silent,
            ("queries", "settled_unjudged"): len(self.settled) - judged - silent,
        }

    def out_of_order(self) -> int:
        late_ms = self.settings.out_of_orderness_ms
        return out_of_order(self.rankings, late_ms) + out_of_order(self.judgments, late_ms)

    def totals(self) -> Tally:
        """Running and settled sums; a row exists from its first ranking on, at first with zeros."""
        tally: Tally = {}
        for row, (queries, total) in running_sums(self.queries, zeros=True).items():
            tally |= {("running", *row, "queries"): queries, ("running", *row, "sum_units"): total}
        for row, contributions in settled_contributions(self.queries).items():
            tally |= {
                ("settled", *row, "queries"): len(contributions),
                ("settled", *row, "sum_units"): sum(contributions),
                ("settled", *row, "square_units"): sum(map(measures.square_units, contributions)),
            }
        for query in self.settled:
            judged = "yes" if query.settled_evaluation.grades else "no"
            judged = "silent" if query.silent else judged
            path = ("settled_queries", query.ranking.model, query.ranking.variant)
            for each in ("yes", "silent", "no"):
                tally[*path, each] = tally.get((*path, each), 0) + (each == judged)
        return tally

    def level_totals(self) -> Tally:
        """The same sums over the queries of each level, before any is folded."""
        tally: Tally = {}
        for level in {level for query in self.queries for level in query.levels}:
            queries = [query for query in self.queries if level in query.levels]
            part = replace(self, queries=queries).totals()
            for (kind, model, variant, *path), n in part.items():
                measured = kind != "settled_queries"
                if measured and path[1] not in self.settings.level_columns:
                    continue
                if path[-1] != "square_units":
                    tally[f"segment_{kind}", model, variant, *level, *path] = n
        return tally

    def nothing_relevant(self) -> int:
        """Settled queries that were judged in time and have no relevant candidate."""
        evaluations = [query.settled_evaluation for query in self.settled if not query.silent]
        return sum(1 for e in evaluations if e.grades and not measures.n_relevant(e.grades))


def fold(tally: Tally, settings: Settings) -> Tally:
    """Sums by level; the sums of levels that are not kept are those of `__other__`."""
    of_levels = {path for path in tally if path[0].startswith("segment_")}
    seen: dict[str, set[str]] = defaultdict(set)
    for path in of_levels:
        seen[path[3]].add(path[4])
    kept = set(settings.segment_levels)
    for segment, levels in seen.items():
        others = [x for x in levels if (segment, x) not in kept and x != OTHER]
        others.sort(key=lambda level: sha256(level.encode()).digest())
        kept |= {(segment, level) for level in others[: settings.max_levels]}
    folded: Tally = {}
    for path, n in tally.items():
        if path in of_levels and path[3:5] not in kept:
            path = (*path[:4], OTHER, *path[5:])  # noqa: PLW2901
        folded[path] = folded.get(path, 0) + n
    return folded


def malformed(log: Sequence[AnyRecord]) -> list[Malformed]:
    return [record for record in log if isinstance(record, Malformed)]


def other_records(log: Sequence[AnyRecord]) -> dict[str, int]:
    """Counts of read records and of records that are not messages."""
    return {
        "read": len(log),
        "malformed": len(malformed(log)),
        "heartbeat": sum(1 for record in log if isinstance(record, Heartbeat)),
    }


def rows_of(query: Query) -> list[tuple[str, str]]:
    """(ranker, measure) of every value that the query has or can have."""
    return [(r, m) for r in query.ranking.rankers for m in query.settings.columns]


def running_sums(
    queries: Iterable[Query], *, zeros: bool = False
) -> dict[tuple[str, str, str, str], tuple[int, int]]:
    """(queries, sum_units) by (model, variant, ranker, measure); with *zeros*, also empty rows."""
    contributions: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for query in queries:
        values = query.running.units
        for ranker, measure in rows_of(query):
            row = (query.ranking.model, query.ranking.variant, ranker, measure)
            if values is not None and (ranker, measure) in values:
                contributions[row].append(values[ranker, measure])
            elif zeros:
                contributions[row] += []
    return {row: (len(units), sum(units)) for row, units in contributions.items()}


def settled_contributions(
    queries: Iterable[Query],
) -> dict[tuple[str, str, str, str], list[int]]:
    """Units of the settled queries with a value; rows of immature queries are empty."""
    contributions: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for query in queries:
        values = query.settled_evaluation.units if query.settled else None
        for ranker, measure in rows_of(query):
            row = (query.ranking.model, query.ranking.variant, ranker, measure)
            contributions[row] += [v for k, v in (values or {}).items() if k == (ranker, measure)]
    return contributions


def started_queries(
    rankings: Sequence[RankingsRecord],
    outcomes: Mapping[int, str],
    watermark: Watermark,
    settings: Settings,
) -> list[Query]:
    """In the order of the task: (event time, trace_id, node_id)."""
    times = event_times(rankings, settings.out_of_orderness_ms)
    queries = [
        Query(record, times[record.offset], settings, watermark)
        for record in rankings
        if isinstance(record, Ranking) and outcomes[record.offset] == "started"
    ]
    return sorted(queries, key=lambda query: query.identity)


def place_judgments(
    judgments: Sequence[JudgmentsRecord],
    queries: Sequence[Query],
    watermark: Watermark,
    settings: Settings,
) -> dict[int, str]:
    """Outcome of each judgment by offset; applied judgments are added to their query."""
    times = event_times(judgments, settings.out_of_orderness_ms)
    log_times = sorted(times[each.offset] for each in judgments if isinstance(each, Judgment))
    of_key: dict[Key, list[Query]] = defaultdict(list)
    for query in queries:
        query.judgment_times, query.log_times = times, log_times
        of_key[query.ranking.key].append(query)
    outcomes = {}
    for judgment in (record for record in judgments if isinstance(record, Judgment)):
        place = home(times[judgment.offset], of_key[judgment.key], watermark, settings)
        if isinstance(place, Query):
            outcome = outcome_at_home(judgment, place.applied, settings)
            if outcome == "applied":
                place.applied.append(judgment)
            place = outcome
        outcomes[judgment.offset] = place
    return outcomes


def judge(
    rankings: Sequence[RankingsRecord],
    judgments: Sequence[JudgmentsRecord],
    settings: Settings,
    *,
    at_end: bool = False,
) -> Task:
    """The task after these two prefixes; *at_end* sets the watermark to plus infinity."""
    watermark = watermark_of(rankings, judgments, settings.out_of_orderness_ms)
    if at_end:
        watermark = PLUS_INFINITY
    outcomes = ranking_outcomes(rankings, settings)
    queries = started_queries(rankings, outcomes, watermark, settings)
    return Task(
        settings=settings,
        rankings=rankings,
        judgments=judgments,
        clocks_ms={"rankings": clock(rankings), "judgments": clock(judgments)},
        watermark=watermark,
        queries=queries,
        ranking_outcomes=outcomes,
        judgment_outcomes=place_judgments(judgments, queries, watermark, settings),
    )

"""Settled queries of a range, with features, for offline learning.

Grades are those at maturity, and queries are in the order of settling, as in the input of a leader.
"""

from collections.abc import Iterator, Sequence
from contextlib import aclosing

from msgspec import Struct, field
from msgspec.structs import replace

from evaluator.core.features import Embedder, SuccessTable, learned
from evaluator.core.measures.exact_sums import add_tally
from evaluator.core.online.ordered_merge import PLACE, SettledQuery
from evaluator.core.online.success_rates import featured, with_rates
from evaluator.core.types.records import LOGS, SERVED, SettledColumns
from evaluator.core.types.tally import Tally
from evaluator.ports import RangeSource, SourceUnusable
from evaluator.replay.feeding import fed, tasks_of
from evaluator.replay.run import ReplayRules


class GroupLog(Struct):
    """The settled queries of a range, in their order: a training example each.

    `n_without` queries have no features. `history` is the table after all queries, `embedder` the
    name of the embedder and `max_grade` the grade that counts fully in the table; None if no
    features were computed.
    """

    feature_names: tuple[str, ...]
    queries: list[SettledQuery]
    n_without: int
    n_dead_letters: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    history: SuccessTable | None = None
    embedder: str | None = None
    max_grade: int | None = None


async def read_groups(
    source: RangeSource, rules: ReplayRules, *, embedder: Embedder, max_grade: int = 2
) -> GroupLog:
    """Reads a range of both logs and joins it.

    Features of described candidates are computed with *embedder*, query by query, each with the
    success rates of the queries before it, in which *max_grade* counts fully.

    Raises:
        SourceUnavailable, SourceUnusable: also if features differ between queries, or are missing.
    """
    settled: list[SettledQuery] = []
    tally: Tally = {}
    ranges: dict[str, tuple[int, int]] = {}
    tasks = tasks_of(source, replace(rules.read, features=True))
    async with aclosing(tasks):
        async for task, of_logs in tasks:
            engine = rules.engine(task)
            async with aclosing(fed(engine, of_logs, at_end=rules.at_end)) as feeding:
                async for outputs in feeding:
                    settled += _queries_of(outputs.settled, task, rules)
            add_tally(tally, engine.tally())
            for name in LOGS:
                ranges[f"{name}-{task}"] = (of_logs[name].start, of_logs[name].end)
    settled.sort(key=PLACE)
    log = _group_log(settled, embedder, max_grade)
    log.n_dead_letters = sum(n for path, n in tally.items() if path[0] == "dead_letters")
    log.ranges = ranges
    return log


def _queries_of(
    parts: Sequence[SettledColumns], task: int, rules: ReplayRules
) -> Iterator[SettledQuery]:
    """The settled queries as the leader reads them."""
    canonical, maturity_ms = rules.measures.canonical, rules.join.maturity_ms
    for part in parts:
        served = _served_units(part, len(canonical))
        offered = part.offered
        if offered is None:
            raise AssertionError("the engine keeps no training data")
        names = zip(part.grades, part.trace_ids, part.node_ids, strict=True)
        for i, (grades, trace_id, node_id) in enumerate(names):
            described, event_ms = offered.described[i], int(part.event_times_ms[i])
            yield SettledQuery(
                task=task,
                n=int(part.ns[i]),
                settled_time_ms=event_ms + maturity_ms,
                event_time_ms=event_ms,
                trace_id=trace_id,
                node_id=node_id,
                model=part.strata.names[part.strata.numbers[i]].model,
                grades={name: grade for name, grade in grades.items() if grade is not None},
                units={SERVED: dict(zip(canonical, served[i], strict=False))},
                sources=offered.sources[i],
                candidate_ids=described.candidate_ids if described else offered.candidate_ids[i],
                feature_names=offered.names[i],
                features=offered.features[i],
                propensities=offered.propensities[i],
                described=described,
            )


def _served_units(part: SettledColumns, n_measures: int) -> list[list[int]]:
    """The values of the served order, `[n_queries, n_measures]`; none for unjudged queries."""
    rankers = part.rankers
    if part.units is None or SERVED not in rankers:
        return [[]] * len(part)
    of_rankers = part.units.reshape(len(part), len(rankers), n_measures)
    found: list[list[int]] = of_rankers[:, rankers.index(SERVED)].tolist()
    return found


def _group_log(settled: Sequence[SettledQuery], embedder: Embedder, max_grade: int) -> GroupLog:
    """Raises SourceUnusable if the features of two queries differ, or no query has any."""
    history: SuccessTable | None = None
    queries: list[SettledQuery] = []
    names: tuple[str, ...] | None = None
    for each in settled:
        query = each
        if each.described is not None:
            history = history or SuccessTable()
            query = with_rates(featured(each, embedder), history)
            history = learned(history, [(each.described, each.grades)], max_grade=max_grade)
        queries.append(query)
        names = query.feature_names if names is None else names
        if names is not None and query.feature_names not in (None, names):
            raise SourceUnusable(
                f"the features of {query.trace_id}, {query.node_id} are "
                f"{', '.join(query.feature_names or ())}; those before it are {', '.join(names)}. "
                "Take a range in which they do not change."
            )
    if names is None:
        raise SourceUnusable(
            f"none of {len(settled)} settled queries has features, so there is nothing to learn "
            "from. Send features with the rankings, or describe their candidates; or add features "
            "to the rows of the samples."
        )
    log = GroupLog(names, queries, sum(query.feature_names is None for query in queries))
    if history is not None:
        log.history, log.embedder, log.max_grade = history, embedder.name, max_grade
    return log

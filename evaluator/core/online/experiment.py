"""The champions and the challenger of one model, and the experiment between them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct, convert, field
from msgspec.structs import replace

from evaluator.core.learning.transforms import transformed
from evaluator.core.measures import MISSING
from evaluator.core.online.events import CHALLENGER, CHAMPION, Version
from evaluator.core.online.offline_ranking import Ranked
from evaluator.core.online.ordered_merge import SettledQuery
from evaluator.core.online.progress import ProgressiveValidation
from evaluator.core.online.rules import Rules
from evaluator.core.online.success_rates import with_rates
from evaluator.core.online.training import has_weight, lacks_propensities
from evaluator.core.promotion.blocks import Sample, hash_of
from evaluator.core.promotion.gate import (
    Experiment,
    Gate,
    Observation,
    Verdict,
    decided,
    trace_observation,
)
from evaluator.core.promotion.source_weights import window_weights
from evaluator.core.types.records import IntArray

MOST_IN_AN_INTERVAL: Final = 200_000
"""Limit of the paired results of an interval; later queries have none."""


class PairedResult(NamedTuple):
    """The paired result of one query, and the source groups of its judgments.

    `content` is the hash of the ranked candidates.
    """

    trace_id: str
    event_time_ms: int
    content: int
    source_groups: frozenset[str]
    differences: Sequence[int | None]  # by measure of the rules; None if either lacks the value


class Experiments(Struct):
    """Measurements of the weights of one model.

    `sums` are the number and the sum of values by ranker and measure. The served order takes the
    place of a champion until there is one for the features of a query, but not of initial weights,
    which are published again for other features.
    """

    champions: list[Version] = field(default_factory=list)  # the newest last
    challenger: Version | None = None
    gate: Gate = field(default_factory=Gate)
    sums: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    progress: ProgressiveValidation = field(default_factory=ProgressiveValidation)
    last: tuple[int, str, str] | None = None  # the last that ended: challenger, status, reason
    # Of the open interval alone:
    paired_results: list[PairedResult] = field(default_factory=list)
    source_groups: Counter[str] = field(default_factory=Counter)  # numbers of judgments

    @property
    def champion(self) -> Version | None:
        """The newest champion."""
        return self.champions[-1] if self.champions else None

    def measure(
        self, queries: Iterable[SettledQuery], rules: Rules, learned: Version | None = None
    ) -> None:
        """Measures the weights in force on settled queries, and pairs the results.

        Clicks without propensities decide on nothing. Without a challenger, also measures the
        *learned* weights, which have not learned from the queries.
        """
        judged = []
        for query in queries:
            for source, n in query.sources.items():
                self.source_groups[rules.group_of(source)] += n
            if query.grades:
                judged.append(query)
        champion, challenger = self._units_in_force(judged, rules)
        live, canonical = self.champion, rules.offline_ranking.measures.canonical
        if live is not None:
            self._add_units(CHAMPION, champion, rules)
        is_initial = live is not None and not live.from_ms and rules.initial_weights
        for row, query in enumerate(judged):
            if live is None or (query.feature_names != live.feature_names and not is_initial):
                champion[row] = [query.served_units.get(name, MISSING) for name in canonical]
        while len(self.champions) > 1 and judged:
            if judged[-1].event_time_ms < self.champions[1].from_ms:
                break
            self.champions.pop(0)
        if self.challenger is not None:
            self._add_units(CHALLENGER, challenger, rules)
        biased = [row for row, query in enumerate(judged) if lacks_propensities(query, rules)]
        champion[biased] = challenger[biased] = MISSING
        if self.challenger is not None:
            self._pair(judged, champion, challenger, rules)
        elif learned is not None:
            self._validate(judged, learned, champion, rules)

    def _validate(
        self, queries: Sequence[SettledQuery], learned: Version, champion: IntArray, rules: Rules
    ) -> None:
        """Compares learned weights with the champion in the measure of the gate."""
        places = [
            i
            for i, query in enumerate(queries)
            if query.feature_names == learned.feature_names
            and has_weight(query, rules.source_weights)
        ]
        ranked = _ranked(queries, places, learned)
        column = rules.offline_ranking.measures.columns[rules.gate.measure]
        found = rules.offline_ranking.units_of(queries, [ranked])[0, :, column]
        both = (found != MISSING) & (champion[:, column] != MISSING)
        self.progress.add((found[both] - champion[both, column]).tolist())

    def _units_in_force(
        self, queries: Sequence[SettledQuery], rules: Rules
    ) -> tuple[IntArray, IntArray]:
        """The values of the champion and of the challenger, `[n_queries, n_measures]` each.

        The last champion in force counts. MISSING without weights in force, or without their
        features.
        """
        champions = self.champions
        versions = champions if self.challenger is None else [*champions, self.challenger]
        places: list[list[int]] = [[] for _ in versions]
        for place, query in enumerate(queries):
            in_force = [i for i, v in enumerate(versions) if query.event_time_ms >= v.from_ms]
            of_champions = [i for i in in_force if i < len(champions)]
            for i in (*of_champions[-1:], *in_force[len(of_champions) :]):
                if query.feature_names == versions[i].feature_names:
                    places[i].append(place)
        ranked = [
            _ranked(queries, mine, version) for mine, version in zip(places, versions, strict=True)
        ]
        units = rules.offline_ranking.units_of(queries, ranked)
        of_champion = np.full(units.shape[1:], MISSING, np.int64)
        for mine, found in zip(places[: len(champions)], units, strict=False):
            of_champion[mine] = found[mine]
        return of_champion, units[-1] if self.challenger else np.full_like(of_champion, MISSING)

    def _add_units(self, ranker: str, units: IntArray, rules: Rules) -> None:
        """Adds values, `[n_queries, n_measures]`, to the sums of a ranker."""
        sums = self.sums.setdefault(ranker, {})
        for column, measure in enumerate(rules.offline_ranking.measures.canonical):
            values = units[units[:, column] != MISSING, column].tolist()
            n, total = sums.get(measure, (0, 0))
            sums[measure] = (n + len(values), total + sum(values))

    def _pair(
        self,
        queries: Sequence[SettledQuery],
        champion: IntArray,
        challenger: IntArray,
        rules: Rules,
    ) -> None:
        """Adds the paired results of queries with a value of the challenger."""
        rows = np.flatnonzero((challenger != MISSING).any(axis=1))
        rows = rows[: MOST_IN_AN_INTERVAL - len(self.paired_results)]
        columns = [rules.offline_ranking.measures.columns[measure] for measure in rules.measures]
        champion, challenger = champion[rows][:, columns], challenger[rows][:, columns]
        differences = (challenger - champion).astype(object)
        differences[(champion == MISSING) | (challenger == MISSING)] = None
        for row, of_query in zip(rows.tolist(), differences.tolist(), strict=True):
            query = queries[row]
            source_groups = frozenset(map(rules.group_of, query.sources))
            of_ranking = query.trace_id, query.event_time_ms, _content_of(query)
            self.paired_results.append(PairedResult(*of_ranking, source_groups, of_query))

    def start(self, challenger: Version, now_ms: int) -> None:
        self.challenger, self.progress = challenger, ProgressiveValidation()
        self.gate = replace(self.gate, experiment=Experiment(now_ms, now_ms))

    def end(self, next_from_ms: int) -> None:
        """Ends the experiment, if one runs; the next one may start at *next_from_ms*."""
        self.challenger, self.gate = None, Gate(None, next_from_ms)

    def decide(
        self, now_ms: int, rules: Rules, *, until_ms: int
    ) -> tuple[Version, Verdict, Mapping[str, Any]] | None:
        """Updates the experiment with the paired results of the interval, which ends at *until_ms*.

        If that ends the experiment, returns its challenger, the verdict, and the evidence.
        """
        experiment, challenger = self.gate.experiment, self.challenger
        if experiment is None or challenger is None:
            return None
        source_weights = None
        if rules.source_weights is not None:
            source_weights = window_weights(self.source_groups, rules.source_weights)
        traces, queries = experiment.traces.copy(), experiment.queries.copy()
        observations = [
            _observation(results, source_weights, rules.measures)
            for results in _counted(self.paired_results, traces, queries)
        ]
        experiment = replace(experiment, traces=traces, queries=queries)
        experiment, verdict = decided(experiment, observations, rules.gate, until_ms=until_ms)
        if verdict.status == "undecided":
            self.gate = replace(self.gate, experiment=experiment)
            return None
        self.end(now_ms + rules.gate.cool_down_ms)
        of_measure = experiment.sums.get(rules.gate.measure)
        evidence = {
            "traces": experiment.n_traces,
            "queries": experiment.n_queries,
            "mean_difference": None if of_measure is None else of_measure.mean,
            "for": verdict.evidence_for,
            "against": verdict.evidence_against,
            "started_ms": experiment.started_ms,
        }
        return challenger, verdict, evidence

    def end_interval(self) -> None:
        """Drops the paired results; older progress counts less."""
        self.progress.end_interval()
        self.paired_results, self.source_groups = [], Counter()

    def shorten_tables(self, max_bytes: int) -> None:
        self.champions = [version.with_table_of(max_bytes) for version in self.champions]
        if self.challenger is not None:
            self.challenger = self.challenger.with_table_of(max_bytes)

    def state(self) -> dict[str, Any]:
        """Everything at the end of an interval, as JSON stores it exactly."""
        return {
            "champions": [version.state() for version in self.champions],
            "challenger": None if self.challenger is None else self.challenger.state(),
            "gate": self.gate.state(),
            "progress": self.progress.state(),
            "last_experiment": None if self.last is None else list(self.last),
            "sums": {
                ranker: {measure: list(of) for measure, of in sorted(sums.items())}
                for ranker, sums in sorted(self.sums.items())
            },
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "Experiments":
        challenger = state["challenger"]
        return cls(
            [Version.load(version) for version in state["champions"]],
            None if challenger is None else Version.load(challenger),
            Gate.load(state["gate"]),
            convert(state["sums"], dict[str, dict[str, tuple[int, int]]]),
            ProgressiveValidation.load(state["progress"]),
            convert(state.get("last_experiment"), tuple[int, str, str] | None),
        )


def _ranked(queries: Sequence[SettledQuery], places: Sequence[int], version: Version) -> Ranked:
    names, transforms = version.feature_names, version.transforms
    rated = (with_rates(queries[i], version.history).features for i in places)
    features = [transformed(each, names, transforms) for each in rated]
    return Ranked(places, features, version.weights)


def _content_of(query: SettledQuery) -> int:
    """The hash of the candidates and their features, or their descriptions, but not of the grades.

    A recurring query has the same hash.
    """
    texts, features = list(query.candidate_ids), query.features.tobytes()
    if (described := query.described) is not None:
        texts += [described.query, *described.descriptions]
        texts += [text for graph in described.graphs for text in (graph.type, graph.text)]
    return hash_of(features, *(text.encode("utf-8", "surrogatepass") for text in texts))


def _counted(
    results: Iterable[PairedResult], traces: Sample, queries: Sample
) -> Iterator[list[PairedResult]]:
    """The results of each trace, in event time, without traces that have counted before."""
    of_trace: dict[str, list[PairedResult]] = {}
    for result in results:
        of_trace.setdefault(result.trace_id, []).append(result)
    times_ms = {name: min(each.event_time_ms for each in of_trace[name]) for name in of_trace}
    for name in sorted(of_trace, key=lambda name: (times_ms[name], name)):
        trace, fresh = hash_of(name.encode("utf-8", "surrogatepass")), list[PairedResult]()
        if not traces.admits(trace):
            continue
        for result in of_trace[name]:
            if queries.admits(result.content):
                queries.add(result.content)
                fresh.append(result)
        if fresh:
            traces.add(trace)
            yield fresh


def _observation(
    results: Sequence[PairedResult],
    source_weights: Mapping[str, float] | None,
    measures: Sequence[str],
) -> Observation:
    """The observation of one trace: its differences, weighted by the weights of source groups."""
    weights = [1.0] * len(results)
    if source_weights is not None:
        weights = [
            min((source_weights[group] for group in result.source_groups), default=0.0)
            for result in results
        ]
    differences, weighed = dict[str, list[int]](), dict[str, list[float]]()
    for column, measure in enumerate(measures):
        pairs = zip(weights, (each.differences[column] for each in results), strict=True)
        there = [(weight, units) for weight, units in pairs if units is not None]
        differences[measure] = [units for _, units in there]
        weighed[measure] = [weight for weight, _ in there]
    time_ms = min(result.event_time_ms for result in results)
    return trace_observation(time_ms, differences, weighed)

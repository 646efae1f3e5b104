"""What a trial of weights gets to see of a turn: values, and bets on them gathered by trace."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evaluator.core.gate import Observation, trace_observation
from evaluator.core.measures import MISSING
from evaluator.core.merge import SettledQuery
from evaluator.core.releases import Rules, Version
from evaluator.core.types import IntArray


class Bet(NamedTuple):
    """What one query says of the candidate, and who judged it."""

    parties: tuple[str, ...]
    differences: tuple[int | None, ...]  # by measure of the rules; None where either lacks it


def write_units(
    queries: Sequence[SettledQuery], version: Version, rules: Rules, into: IntArray
) -> None:
    """Writes the values of a version where it is in force and has the features it needs.

    *into*, `[n_queries, n_measures]`, becomes MISSING where it is in force and has not.
    """
    in_force = [
        place for place, query in enumerate(queries) if query.event_time_ms >= version.from_ms
    ]
    into[in_force] = MISSING
    mine = [place for place in in_force if queries[place].feature_names == version.feature_names]
    if mine:
        chosen = [queries[place] for place in mine]
        into[mine] = rules.contest.units(chosen, version.weights)


def observation_of(
    now_ms: int, bets: Sequence[Bet], worth: Mapping[str, float] | None, rules: Rules
) -> Observation:
    """A trace: its differences, and what the judgments of each query are worth."""
    differences: dict[str, list[int]] = {}
    weights: dict[str, list[float]] = {}
    for bet in bets:
        weight = 1.0
        if worth is not None:
            weight = min((min(worth[party], 1.0) for party in bet.parties), default=0.0)
        for measure, difference in zip(rules.measures, bet.differences, strict=True):
            if difference is not None:
                differences.setdefault(measure, []).append(difference)
                weights.setdefault(measure, []).append(weight)
    return trace_observation(now_ms, differences, None if worth is None else weights)

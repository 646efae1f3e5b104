"""What a judgment is worth by who gave it: weights of sources, and caps on what floods in.

Weights are settled for a window of event time as a whole, from nothing but the numbers of its
judgments by source. So neither their order nor what they say matters, and a bet that is made
smaller by a weight stays a fair one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

OTHERS: Final = ""
"""All sources without a rule of their own, together: many names are worth no more than one."""


@dataclass(frozen=True, slots=True)
class SourceRule:
    """What one source may contribute.

    Args:
        weight: of each judgment, in [0, 1].
        max_judgments: of a window, in full weight; more share that much. None: no such cap.
        max_share: of the weight of all judgments of a window together, in [0, 1]. 1: no such cap.
    """

    weight: float = 1.0
    max_judgments: int | None = None
    max_share: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.weight <= 1 and 0 <= self.max_share <= 1):
            raise ValueError("weight and max_share of a source lie in [0, 1]")
        if self.max_judgments is not None and self.max_judgments < 0:
            raise ValueError("max_judgments of a source is 0 or more; leave it out for no cap")


@dataclass(frozen=True, slots=True)
class TrustRules:
    """Sources that are known, and what all others get between them."""

    sources: Mapping[str, SourceRule]
    others: SourceRule = field(default_factory=lambda: SourceRule(weight=0.0))
    window_ms: int = 3_600_000

    def __post_init__(self) -> None:
        if self.window_ms < 1:
            raise ValueError("window_ms is the length of a window of event time, at least 1")

    def party(self, source: str) -> str:
        """Who answers for a source: itself, or OTHERS. A source without a name is one of those."""
        return source if source != OTHERS and source in self.sources else OTHERS

    def rule(self, party: str) -> SourceRule:
        """Of a party."""
        return self.others if party == OTHERS else self.sources[party]


def judgment_weights(
    sources: Sequence[str], event_times_ms: Sequence[int], rules: TrustRules
) -> list[float]:
    """The weight of each judgment, in [0, 1]; every window must be there as a whole.

    >>> rules = TrustRules({"human": SourceRule(), "click": SourceRule(weight=0.5)})
    >>> judgment_weights(["human", "click", "stranger"], [0, 0, 0], rules)
    [1.0, 0.5, 0.0]
    """
    counts: dict[int, dict[str, int]] = {}
    places = [
        (time_ms // rules.window_ms, rules.party(source))
        for source, time_ms in zip(sources, event_times_ms, strict=True)
    ]
    for window, party in places:
        of_window = counts.setdefault(window, {})
        of_window[party] = of_window.get(party, 0) + 1
    weights = {window: window_weights(each, rules) for window, each in counts.items()}
    return [weights[window][party] for window, party in places]


def window_weights(counts: Mapping[str, int], rules: TrustRules) -> dict[str, float]:
    """The weight of each judgment by party, from the numbers of judgments of one window.

    A cap on the share needs company: where every party has one that is below 1, and all of them
    reach it, nothing is left to measure a share by, and nothing counts.

    >>> rules = TrustRules({"human": SourceRule(), "click": SourceRule(max_share=0.2)})
    >>> weights = window_weights({"human": 80, "click": 1000}, rules)
    >>> weights["human"], weights["click"] * 1000  # 20 of 100
    (1.0, 20.0)
    """
    totals = {}
    for party, count in sorted(counts.items()):
        rule = rules.rule(party)
        n = count if rule.max_judgments is None else min(count, rule.max_judgments)
        totals[party] = rule.weight * n
    shares = {party: rules.rule(party).max_share for party in totals}
    capped = _with_shares_capped(totals, shares)
    return {
        party: min(capped[party] / counts[party], rules.rule(party).weight)
        if counts[party]
        else 0.0
        for party in totals
    }


def _with_shares_capped(
    totals: Mapping[str, float], shares: Mapping[str, float]
) -> dict[str, float]:
    """The largest totals that no party has more than its share of, of their sum.

    Whoever is above its share gets just that; the sum is then what the others have, divided by the
    share that is left to them. That may put others above theirs, so it is repeated; each time at
    least one party more is capped.
    """
    capped: set[str] = set()
    while True:
        free = sum(total for party, total in totals.items() if party not in capped)
        left = 1.0 - sum(shares[party] for party in sorted(capped))
        whole = free / left if free > 0 and left > 0 else 0.0
        above = {
            party
            for party, total in totals.items()
            if party not in capped and total > shares[party] * whole
        }
        if not above:
            return {
                party: min(total, shares[party] * whole) if party in capped else total
                for party, total in totals.items()
            }
        capped |= above

"""Weights of judgments by source, and caps on what one source contributes.

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
class SourceWeights:
    """The rules of known sources, and one rule for all others together."""

    sources: Mapping[str, SourceRule]
    others: SourceRule = field(default_factory=lambda: SourceRule(weight=0.0))
    window_ms: int = 3_600_000

    def __post_init__(self) -> None:
        if self.window_ms < 1:
            raise ValueError("window_ms is the length of a window of event time, at least 1")

    def group(self, source: str) -> str:
        """The group of a source: itself, or OTHERS. A source without a name belongs to OTHERS."""
        return source if source != OTHERS and source in self.sources else OTHERS

    def rule(self, source_group: str) -> SourceRule:
        """The rule of a source group."""
        return self.others if source_group == OTHERS else self.sources[source_group]


def judgment_weights(
    sources: Sequence[str], event_times_ms: Sequence[int], rules: SourceWeights
) -> list[float]:
    """The weight of each judgment, in [0, 1]; every window must be there as a whole.

    >>> rules = SourceWeights({"human": SourceRule(), "click": SourceRule(weight=0.5)})
    >>> judgment_weights(["human", "click", "stranger"], [0, 0, 0], rules)
    [1.0, 0.5, 0.0]
    """
    counts: dict[int, dict[str, int]] = {}
    places = [
        (time_ms // rules.window_ms, rules.group(source))
        for source, time_ms in zip(sources, event_times_ms, strict=True)
    ]
    for window, source_group in places:
        of_window = counts.setdefault(window, {})
        of_window[source_group] = of_window.get(source_group, 0) + 1
    weights = {window: window_weights(each, rules) for window, each in counts.items()}
    return [weights[window][source_group] for window, source_group in places]


def window_weights(counts: Mapping[str, int], rules: SourceWeights) -> dict[str, float]:
    """The weight of each judgment by source group, from the numbers of judgments of one window.

    If every source group has a cap on its share below 1, and all of them reach it, there is nothing
    left to measure a share by, and nothing counts.

    >>> rules = SourceWeights({"human": SourceRule(), "click": SourceRule(max_share=0.2)})
    >>> weights = window_weights({"human": 80, "click": 1000}, rules)
    >>> weights["human"], weights["click"] * 1000  # 20 of 100
    (1.0, 20.0)
    """
    totals = {}
    for source_group, count in sorted(counts.items()):
        rule = rules.rule(source_group)
        n = count if rule.max_judgments is None else min(count, rule.max_judgments)
        totals[source_group] = rule.weight * n
    shares = {source_group: rules.rule(source_group).max_share for source_group in totals}
    capped = _with_shares_capped(totals, shares)
    return {
        source_group: min(
            capped[source_group] / counts[source_group], rules.rule(source_group).weight
        )
        if counts[source_group]
        else 0.0
        for source_group in totals
    }


def _with_shares_capped(
    totals: Mapping[str, float], shares: Mapping[str, float]
) -> dict[str, float]:
    """The largest totals of which no source group has more than its share.

    Whoever is above its share gets just that; the sum is then what the others have, divided by the
    share that is left to them. That may put others above theirs, so it is repeated; each time at
    least one source group more is capped.
    """
    capped: set[str] = set()
    while True:
        free = sum(total for source_group, total in totals.items() if source_group not in capped)
        left = 1.0 - sum(shares[source_group] for source_group in sorted(capped))
        whole = free / left if free > 0 and left > 0 else 0.0
        above = {
            source_group
            for source_group, total in totals.items()
            if source_group not in capped and total > shares[source_group] * whole
        }
        if not above:
            return {
                source_group: min(total, shares[source_group] * whole)
                if source_group in capped
                else total
                for source_group, total in totals.items()
            }
        capped |= above

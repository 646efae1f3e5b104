"""Weights of judgments by source, and caps on the contribution of one source.

The weights of a window of event time depend only on the numbers of its judgments by source, not on
their order or content. A bet made smaller by such a weight remains fair.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

_ROUNDING: Final = 1e-9
"""A share that is exceeded by less is reached: shares such as 0.3 and 0.7 are rounded."""
OTHERS: Final = ""
"""The common source group of all sources without a rule."""


class SourceRule(Struct, frozen=True):
    """The contribution of one source.

    Args:
        weight: of each judgment, in [0, 1].
        max_judgments: of a window, with full weight; more of them share that total. None: no cap.
        max_share: of the weight of all judgments of a window, in [0, 1]; 1: no cap.
    """

    weight: float = 1.0
    max_judgments: int | None = None
    max_share: float = 1.0


class SourceWeights(Struct, frozen=True):
    """The rules of known sources, and one rule for all others together."""

    sources: Mapping[str, SourceRule]
    others: SourceRule = field(default_factory=lambda: SourceRule(weight=0.0))

    def group(self, source: str) -> str:
        """The source group of a source, or OTHERS, also for a source without a name."""
        return source if source != OTHERS and source in self.sources else OTHERS

    def rule(self, source_group: str) -> SourceRule:
        return self.others if source_group == OTHERS else self.sources[source_group]


def window_weights(counts: Mapping[str, int], rules: SourceWeights) -> dict[str, float]:
    """The weight of each judgment by source group, from the numbers of judgments of one window.

    If all source groups have a cap on their share below 1 and reach it, all weights are 0.

    >>> rules = SourceWeights({"human": SourceRule(), "click": SourceRule(max_share=0.2)})
    >>> weights = window_weights({"human": 80, "click": 1000}, rules)
    >>> weights["human"], weights["click"] * 1000  # 20 of 100
    (1.0, 20.0)
    """
    totals = {}
    for group, count in sorted(counts.items()):
        rule = rules.rule(group)
        n = count if rule.max_judgments is None else min(count, rule.max_judgments)
        totals[group] = rule.weight * n
    capped = _with_shares_capped(totals, {group: rules.rule(group).max_share for group in totals})
    return {
        group: min(total / counts[group], rules.rule(group).weight) if counts[group] else 0.0
        for group, total in capped.items()
    }


def _with_shares_capped(
    totals: Mapping[str, float], shares: Mapping[str, float]
) -> dict[str, float]:
    """The largest totals in which no source group exceeds its share.

    A group above its share gets that share; the sum is then the total of the others, divided by
    their remaining share. Other groups may exceed their share after that, so it is repeated; each
    pass caps at least one more group.
    """
    capped: set[str] = set()
    while True:
        free = sum(total for group, total in totals.items() if group not in capped)
        left = 1.0 - sum(shares[group] for group in sorted(capped))
        whole = free / left if free > 0 and left > 0 else 0.0
        limits = {group: shares[group] * whole for group in totals}
        above = {
            group
            for group in totals.keys() - capped
            if totals[group] > limits[group] * (1 + _ROUNDING)
        }
        if not above:
            return {
                group: min(total, limits[group]) if group in capped else total
                for group, total in totals.items()
            }
        capped |= above

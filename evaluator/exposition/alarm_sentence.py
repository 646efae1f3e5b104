"""The summary of an alarm, for the page, `/status` and `evaluator alarms list`."""

from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from typing import Final

from evaluator.core.alarms.alarm import Alarm, Carrier, Context
from evaluator.core.alarms.rules import CLEAR
from evaluator.core.alarms.ticks import HOUR_MS, WEEK_HOURS
from evaluator.core.online.watched import COVERAGE, SeriesName
from evaluator.tables import printable, utc_time

MAX_CARRIERS: Final = 3
"""Carriers of a drop that are named; the others are in the rest."""
_LEAST_REST: Final = 0.005
"""A smaller share of the queries is not named as the rest."""
_ALERTS: Final = {
    "own": "EvaluatorQualityAlarm",
    "pair": "EvaluatorPairAlarm",
    "constant": "EvaluatorObjectiveAlarm",
    "variants": "EvaluatorVariantsAlarm",
}
_REFERENCES: Final = {
    "constant": "by its objective",
    "variants": "in the same hours of the other variant",
}


def alert_of(name: SeriesName) -> str:
    """The alert on alarms of a series, which names their runbook too."""
    of_kind = _ALERTS.get(name.kind, _ALERTS["own"])
    return "EvaluatorCoverageAlarm" if name.measure == COVERAGE else of_kind


def carrier_text(carrier: Carrier) -> str:
    """The name of a carrier: a level, or another cause."""
    return f"{carrier.segment}={carrier.level}" if carrier.segment else carrier.level


def alarm_sentence(name: SeriesName, alarm: Alarm, unverifiable: str = "") -> str:
    """The summary of an alarm: series, level, drop, reference, onset, carriers and cause.

    The figures are those of the window that began the alarm. *unverifiable* names the reason
    why its values may not be comparable.
    """
    expected = _REFERENCES.get(name.kind, "for these hours")
    window = f"{alarm.window_hours} h" if alarm.window_hours < WEEK_HOURS else "7 days"
    onset = utc_time(alarm.onset_ms / 1000, "%a %Y-%m-%d %H:%M")
    parts = [
        (
            f"{_subject(name)} is {alarm.observed:.3f}, expected {alarm.expected:.3f} {expected}: "
            f"lower by {alarm.drop:.3f} (standard error {alarm.se:.3f}) over the last {window}, "
            f"since about {onset} UTC ({_hours(alarm.since_ms - alarm.onset_ms)} before the alarm)."
        ),
        (
            f"Evidence {alarm.evidence:.1f} times the limit of an alarm; {alarm.queries:,} queries"
            f"{_judged(alarm.context)}."
        ),
        _carriers(alarm.carried_by),
        _pair(alarm),
        _weeks(alarm.context.weeks_ms),
        f"The {unverifiable} has an alarm too: check it first." if unverifiable else "",
    ]
    return printable(" ".join(filter(None, parts)))


def _subject(name: SeriesName) -> str:
    model = name.model or "(unnamed)"
    where = f", {name.segment}={name.level}," if name.segment else ""
    if name.measure == COVERAGE:
        return f"The share of the queries of {model}/{name.variant}{where} that is judged in time"
    if name.kind == "pair":
        return f"The difference {name.ranker} of {name.measure} of {model}/{name.variant}{where}"
    if name.kind == "variants":
        of = f"{name.measure} of {model} ({name.ranker}){where}"
        return f"The difference {name.variant} of {of}"
    return f"{name.measure} of {model}/{name.variant} ({name.ranker}){where}"


def _hours(ms: int) -> str:
    return f"{max(1, round(ms / HOUR_MS))} h"


def _judged(context: Context) -> str:
    if context.judged is None:
        return ""
    usual = "" if context.usual_judged is None else f" (usual {context.usual_judged:.2f})"
    return f", judged {context.judged:.2f}{usual}"


def _carriers(carried_by: Sequence[Carrier]) -> str:
    """The levels that carry the drop, each with its share of it and its change; then the rest.

    The rest has the mean change of the queries that are in no named level.
    """
    named = [of for of in carried_by[:MAX_CARRIERS] if of.share > 0]
    if not named:
        return ""
    texts = [
        f"{carrier_text(of)} {_percent(of.share)}"
        + f" ({of.change:+.3f} on {_percent(of.queries_share)} of the queries)" * bool(of.segment)
        for of in named
    ]
    first = named[0]
    whole = first.change * (first.queries_share if first.segment else 1.0) / first.share
    share, queries = fsum(of.share for of in named), fsum(of.queries_share for of in named)
    if queries < 1 - _LEAST_REST:
        texts.append(f"rest {whole * (1 - share) / (1 - queries):+.3f}")
    return f"Carried by: {', '.join(texts)}."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _pair(alarm: Alarm) -> str:
    """Whether the pair fell too, by half of the drop or more; empty if that is unknown.

    It fell if that and any fall at all are both beyond chance.
    """
    change, chance = alarm.context.pair_change, CLEAR * alarm.context.pair_se
    if not alarm.context.pair:
        return ""
    if change + chance < 0 and change <= -alarm.drop / 2:
        return f"{alarm.context.pair} fell by {-change:.3f} too: it is the model, not the traffic."
    if change - chance >= -alarm.drop / 2:
        if change + chance < 0:
            return (
                f"{alarm.context.pair} fell by {-change:.3f}, less than half: not the model alone."
            )
        return f"{alarm.context.pair} did not fall ({change:+.3f}): traffic, season or judges."
    return (
        f"{alarm.context.pair} changed by {change:+.3f} (standard error "
        f"{alarm.context.pair_se:.3f}): not clear yet whether it is the model."
    )


def _weeks(weeks_ms: Sequence[int]) -> str:
    """The Mondays of the reference: the first and the last, or all if weeks between are not in."""
    mondays = [utc_time(ms / 1000, "%d %b").lstrip("0") for ms in weeks_ms]
    if not mondays:
        return ""
    if all(later - ms == WEEK_HOURS * HOUR_MS for ms, later in pairwise(weeks_ms)):
        mondays = [" to ".join(dict.fromkeys((mondays[0], mondays[-1])))]
    return f"Reference: weeks of {', '.join(mondays)}."

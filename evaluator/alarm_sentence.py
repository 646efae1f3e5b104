"""One sentence about an alarm, for the page, `/status` and `evaluator alarms list`."""

from typing import Final

from evaluator.core.alarms.series import Alarm
from evaluator.core.online.watched import COVERAGE, SeriesName
from evaluator.tables import printable, utc_time

MAX_CARRIERS: Final = 3
"""Carriers of a drop that a sentence has; the others are counted."""
_ALERTS: Final = {
    "own": "EvaluatorQualityAlarm",
    "pair": "EvaluatorPairAlarm",
    "constant": "EvaluatorObjectiveAlarm",
    "variants": "EvaluatorVariantsAlarm",
}
_REFERENCES: Final = {
    "constant": "than its objective",
    "variants": "than the other variant in the same hours",
}


def alert_of(name: SeriesName) -> str:
    """The alert on alarms of a series, which names their runbook too."""
    of_kind = _ALERTS.get(name.kind, _ALERTS["own"])
    return "EvaluatorCoverageAlarm" if name.measure == COVERAGE else of_kind


def alarm_sentence(name: SeriesName, alarm: Alarm, unverifiable: str = "") -> str:
    """What fell, to which level, by how much below which reference, since when, and where.

    The figures are those of the window that began the alarm. *unverifiable* names the cause why
    its values may not be comparable.
    """
    reference = _REFERENCES.get(name.kind, "than its past weeks explain")
    hours = f"{alarm.window_hours} h" if alarm.window_hours < 168 else "7 days"
    since = utc_time(alarm.onset_ms / 1000, "%a %Y-%m-%d %H:%M")
    sentence = (
        f"{_subject(name)} is {alarm.observed:.4f}, expected {alarm.expected:.4f}: lower by "
        f"{alarm.drop:.4f} (standard error {alarm.se:.4f}) {reference}, over {hours} with "
        f"{alarm.queries:,} queries, since about {since} UTC; evidence {alarm.evidence:.1f} times "
        f"the limit of an alarm{_carriers(alarm)}."
    )
    if unverifiable:
        sentence += f" The {unverifiable} has an alarm too: check it first."
    return printable(sentence)


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


def _carriers(alarm: Alarm) -> str:
    """The levels that carry the drop, each with its share of it and its change."""
    named = [
        f"{of.segment}={of.level} ({of.share:.0%}, {of.change:+.4f})"
        if of.segment
        else f"{of.level} ({of.share:.0%})"
        for of in alarm.carried_by[:MAX_CARRIERS]
    ]
    if (n_more := len(alarm.carried_by) - MAX_CARRIERS) > 0:
        named.append(f"{n_more} more")
    return f"; carried by {', '.join(named)}" if named else ""

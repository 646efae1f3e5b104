"""The levels of segments that carry a drop, and other watched figures of its window."""

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Final

from evaluator.core.alarms.alarm import Alarm, Carrier, Context
from evaluator.core.alarms.look import Hour, hours_beside
from evaluator.core.alarms.series import AlarmSeries
from evaluator.core.alarms.sums import total_of
from evaluator.core.alarms.ticks import HOUR_MS, first_hour_of, hour_before
from evaluator.core.online.watched import COVERAGE, SeriesName, WatchRules

_CARRIED: Final = 0.8
_MAX_CARRIED: Final = 10
_ALIKE: Final = 0.1
_WHOLE: Final = 0.99
EVERYWHERE: Final = "everywhere"
MIX: Final = "change of mix"
"""Carriers that are not levels, with the segment "": all levels alike, and their changed shares."""


def carriers_of(segments: Sequence[Sequence[Carrier]], change: float) -> tuple[Carrier, ...]:
    """The carriers of a drop, from the levels of each segment and the *change* of the whole.

    If every query has a level of the segment, the unexplained rest is the change of mix.
    """
    best, most = list[Carrier](), 0.0
    for levels in segments:
        found, left = list(levels), 1.0 - fsum(level.share for level in levels)
        if fsum(level.queries_share for level in levels) > _WHOLE:
            found.append(Carrier("", MIX, left, 0.0, left * change))
        excess = max(carrier.share - carrier.queries_share for carrier in found)
        if not best or excess > most:
            best, most = found, excess
    if not best:
        return ()
    if all(abs(carrier.share - carrier.queries_share) <= _ALIKE for carrier in best):
        return (Carrier("", EVERYWHERE, 1.0, 1.0, change),)
    best.sort(key=lambda carrier: -carrier.share)
    carried, total = list[Carrier](), 0.0
    for carrier in best[:_MAX_CARRIED]:
        if total >= _CARRIED or carrier.share <= 0:
            break
        carried.append(carrier)
        total += carrier.share
    return tuple(carried)


def carried_by(
    name: SeriesName,
    alarm: Alarm,
    series: Mapping[SeriesName, AlarmSeries],
    rules: WatchRules,
) -> tuple[Carrier, ...]:
    """The levels that carry most of a drop, the largest share first, of the segment that explains
    most; EVERYWHERE if the shares of all levels are like those of their queries.

    A level has the change against its own past; of a pair, that of the first ranker without that of
    the second; of two variants, the change against the same hours of the second.
    """
    if name.segment or name.kind == "constant":
        return ()
    hour = hour_before(alarm.since_ms)
    queries, lack = _sums(series[name].hours_before(hour, alarm.window_hours))
    if not queries or not lack:
        return ()
    by_segment: dict[str, list[Carrier]] = {}
    for segment, level in rules.levels:
        of = name._replace(segment=segment, level=level)
        n, of_level = _level_sums(of, series, rules, hour, alarm.window_hours)
        if n:
            carrier = Carrier(segment, level, of_level / lack, n / queries, of_level / n)
            by_segment.setdefault(segment, []).append(carrier)
    return carriers_of(list(by_segment.values()), lack / queries)


def _level_sums(
    name: SeriesName,
    series: Mapping[SeriesName, AlarmSeries],
    rules: WatchRules,
    hour: int,
    n_hours: int,
) -> tuple[int, float]:
    """Queries and summed change of a level, from its series of each ranker or variant.

    0 queries if one of them is not watched, or if a pair has not all of these queries.
    """
    names = [name]
    if name.kind == "pair":
        pairs = {"-".join(pair): pair for pair in rules.pairs}
        names = [name._replace(ranker=ranker, kind="own") for ranker in pairs[name.ranker]]
    elif name.kind == "variants":
        both = {"-".join(variants): variants for variants in rules.variants}
        names = [name._replace(variant=of, kind="own") for of in both[name.variant]]
    found = [series[each] for each in names if each in series]
    if len(found) < len(names):
        return 0, 0.0
    if name.kind == "variants":
        whole = series[name._replace(segment="", level="")]
        sums = found[0].hourly, found[1].hourly
        return _sums(hours_beside(*sums, whole.exclusions, hour, n_hours))
    queries, changes = zip(*(_sums(of.hours_before(hour, n_hours)) for of in found), strict=True)
    change = changes[0] - changes[1] if name.kind == "pair" else changes[0]
    return (queries[0], change) if len(set(queries)) == 1 else (0, 0.0)


def _sums(hours: Sequence[Hour]) -> tuple[int, float]:
    return sum(of.queries for of in hours), fsum(of.residual for of in hours)


def context_of(
    name: SeriesName,
    alarm: Alarm,
    series: Mapping[SeriesName, AlarmSeries],
    rules: WatchRules,
) -> Context:
    """The reference weeks of an alarm, and the judged share and a pair in its window.

    The pair is the first declared one whose first ranker is that of the series.
    """
    reference = series[name].reference
    weeks = () if reference is None else reference.weeks
    found = Context(weeks_ms=tuple(first_hour_of(week) * HOUR_MS for week in weeks))
    share = series.get(SeriesName(name.model, name.variant, "", COVERAGE, "", "", "own"))
    if name.segment or share is series[name]:
        return found
    hour, n_hours = hour_before(alarm.since_ms), alarm.window_hours
    if share is not None:
        hours = range(hour, hour - n_hours, -1)
        total = total_of(share.hourly.of(each) for each in hours if each not in share.exclusions)
        if total.queries:
            judged = total.value / total.queries
            _, change = _sums(expected := share.hours_before(hour, n_hours))
            usual = judged - change / total.queries if expected else None
            found = found._replace(judged=judged, usual_judged=usual)
    for pair in rules.pairs if name.kind != "pair" else ():
        beside = series.get(name._replace(ranker="-".join(pair), kind="pair"))
        for look in beside.looks if beside is not None and pair[0] == name.ranker else ():
            if look.hours == n_hours:
                return found._replace(
                    pair="-".join(pair), pair_change=look.change, pair_se=look.error
                )
    return found

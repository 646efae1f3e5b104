"""The levels of segments that carry a drop."""

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Final

from evaluator.core.alarms.look import Hour, hours_beside
from evaluator.core.alarms.series import Alarm, AlarmSeries, Carrier
from evaluator.core.alarms.ticks import hour_before
from evaluator.core.online.watched import SeriesName, WatchRules

_CARRIED: Final = 0.8
_MAX_CARRIED: Final = 10
_ALIKE: Final = 0.1
_WHOLE: Final = 0.99
EVERYWHERE: Final = "everywhere"
MIX: Final = "change of mix"
"""Carriers that are no level, with the segment "": all levels alike, and their changed shares."""


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
    if most <= _ALIKE:
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
        return _sums(hours_beside(*sums, 0.0, whole.exclusions, hour, n_hours))
    queries, changes = zip(*(_sums(of.hours_before(hour, n_hours)) for of in found), strict=True)
    change = changes[0] - changes[1] if name.kind == "pair" else changes[0]
    return (queries[0], change) if len(set(queries)) == 1 else (0, 0.0)


def _sums(hours: Sequence[Hour]) -> tuple[int, float]:
    return sum(of.queries for of in hours), fsum(of.residual for of in hours)

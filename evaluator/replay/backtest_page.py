"""The picture of a backtest: one HTML file with its data, style and script."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec

from evaluator.exposition.colours import colours
from evaluator.replay.backtest import DROPS, BacktestResult, Delays, GridRow, Track

_DIGITS: Final = 5
_OF_POINTS: Final = ("level", "expected", "margin", "evidence")
_OF_ALARMS: Final = ("window_hours", "drop", "observed", "expected", "se", "evidence")


def page_of(
    result: BacktestResult, settings: Mapping[str, str], grid: Sequence[GridRow] = ()
) -> str:
    """The page. External text is JSON in a script, without `<`; the script writes it as text."""
    data = {
        "begin_ms": result.begin_ms,
        "end_ms": result.end_ms,
        "drops": DROPS,
        "settings": settings,
        "grid": [
            {
                "settings": list(row.settings.items()),
                "alarms": row.n_alarms,
                "rate": row.rate,
                "delays": _delays(row.delays),
            }
            for row in grid
        ],
        "series": [_series(track) for track in result.tracks],
    }
    text = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    page = files("evaluator.replay").joinpath("backtest.html").read_text("utf-8")
    return page.replace("COLOURS", colours()).replace('"DATA"', text)


def _series(track: Track) -> dict[str, Any]:
    points = track.points
    labels = {label: value for label, value in track.name._asdict().items() if value}
    return {
        "labels": labels,
        "queries": track.n_queries,
        "watched_days": track.watched_hours / 24,
        "first_ms": points[0].end_ms if points else 0,
        **{name: _column([getattr(each, name) for each in points]) for name in _OF_POINTS},
        "excluded": [n for n, each in enumerate(points) if each.excluded],
        "delays": _delays(track.delays),
        "alarms": [
            {
                "since_ms": span.on.time_ms,
                "onset_ms": span.on.alarm.onset_ms,
                "off_ms": span.off_ms,
                **{name: getattr(span.on.alarm, name) for name in _OF_ALARMS},
                "carried_by": [of._asdict() for of in span.on.alarm.carried_by],
                "unverifiable": span.on.unverifiable,
            }
            for span in track.spans
            if span.on.alarm is not None
        ],
    }


def _delays(delays: Mapping[float, Delays]) -> list[tuple[list[float], int]]:
    return [(list(of.hours), of.n) for of in (delays[drop] for drop in DROPS)]


def _column(values: list[float | None]) -> list[float | None]:
    return [None if value is None else round(value, _DIGITS) for value in values]

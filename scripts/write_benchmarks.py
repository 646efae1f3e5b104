"""Writes docs/benchmarks-*.svg from the figures of benchmarks/results."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.write_timeline import STYLE, text

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results"
WIDTH, LEFT, BAR, GAP = 760, 250, 20, 8
SCALE: Final = 380
"""Width of the longest bar."""
NAMES: Final = {
    "getmany": "bare getmany",
    "evaluator": "evaluator",
    "evaluator without alarms": "evaluator, alarms=off",
    "streams": "Kafka Streams",
}


COLOURS: Final = {"evaluator": "green", "evaluator without alarms": "green"}


class Bar(NamedTuple):
    """A bar; *size* sets its length, *told* is the text at its end."""

    name: str
    size: float
    told: str
    colour: str = "blue"


Chart = dict[str, list[Bar]]
"""Groups of bars, each under a heading and with a scale of its own."""


def pairs_chart(figures: dict[str, Any]) -> Chart:
    """CPU time per pair of every program, for each kind of traffic."""
    return {
        heading: [
            Bar(
                NAMES[name],
                us := one["second_half_cpu_us"],
                f"{us:.1f} us",
                COLOURS.get(name, "grey"),
            )
            for name, one in run["medians"].items()
        ]
        for heading, run in figures.items()
        if heading != "environment"
    }


def growth_chart(figures: dict[str, Any]) -> Chart:
    """CPU time per pair for each variation of the traffic."""
    chart: Chart = {}
    for axis, value, cost, _ in figures["growth"]:
        chart.setdefault(axis, []).append(Bar(value, float(cost), f"{cost} us"))
    return chart


CHARTS: Final = {
    "pairs.json": ("benchmarks-pairs.svg", pairs_chart),
    "growth.json": ("benchmarks-growth.svg", growth_chart),
}


def picture(chart: Chart) -> str:
    """The chart as SVG that follows the colour scheme of its reader."""
    parts, y = [], 10
    for heading, bars in chart.items():
        parts.append(text(LEFT, y + 16, heading, "small"))
        y += 26
        longest = max(bar.size for bar in bars)
        for bar in bars:
            width = max(2.0, SCALE * bar.size / longest)
            place = f'x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR}"'
            parts += [
                text(LEFT - 12, y + 15, bar.name, "label"),
                f'<rect class="{bar.colour}" {place}/>',
                text(LEFT + round(width) + 8, y + 15, bar.told),
            ]
            y += BAR + GAP
        y += GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" '
        'aria-label="CPU time per pair, in microseconds">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{y}"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def pictures() -> dict[Path, str]:
    """Every picture by its path, drawn from the figures in the repository."""
    return {
        ROOT / "docs" / place: picture(chart(json.loads((RESULTS / source).read_text("utf-8"))))
        for source, (place, chart) in CHARTS.items()
    }


if __name__ == "__main__":
    for target, content in pictures().items():
        target.write_text(content, "utf-8")

"""Writes the tables of docs/benchmarks.md, and docs/benchmarks-*.svg, from benchmarks/results."""

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.write_timeline import STYLE, text

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results"
WIDTH, LEFT, BAR, GAP = 760, 250, 20, 8
SCALE: Final = 380
"""Width of the longest bar."""
WITHOUT_ALARMS: Final = "evaluator without alarms"
PAGE: Final = ROOT / "docs" / "benchmarks.md"
NAMES: Final = {
    "getmany": "bare `getmany`",
    "evaluator": "evaluator",
    WITHOUT_ALARMS: "evaluator, `alarms=off`",
    "streams": "Kafka Streams",
    "quix": "Quix Streams",
    "naive": "naive evaluator",
}
COLOURS: Final = {"evaluator": "green", WITHOUT_ALARMS: "green"}

Figures = dict[str, Any]


class Bar(NamedTuple):
    """A bar; *size* sets its length, *told* is the text at its end."""

    name: str
    size: float
    told: str
    colour: str = "blue"


Chart = dict[str, list[Bar]]
"""Groups of bars, each under a heading and with a scale of its own."""


def runs_of(figures: Figures) -> list[tuple[str, Figures]]:
    """The loads of a run, by name."""
    return [(name, run) for name, run in figures.items() if name != "environment"]


def pairs_chart(figures: Figures) -> Chart:
    """CPU time per pair of every program, for each kind of traffic."""
    return {
        heading: [
            Bar(
                NAMES[name].replace("`", ""),
                us := one["second_half_cpu_us"],
                f"{us:.1f} us",
                COLOURS.get(name, "grey"),
            )
            for name, one in run["medians"].items()
        ]
        for heading, run in runs_of(figures)
    }


def growth_chart(figures: Figures) -> Chart:
    """CPU time per pair for each variation of the traffic."""
    chart: Chart = {}
    for axis, value, cost, _ in figures["growth"]:
        chart.setdefault(axis, []).append(Bar(value, float(cost), f"{cost} us"))
    return chart


def pairs_table(figures: Figures) -> list[list[str]]:
    """What a pair costs in every program."""
    rows = [["traffic", "", "pairs/s", "CPU us per pair", "second half", "max RSS"]]
    for heading, run in runs_of(figures):
        for name, one in run["medians"].items():
            costs = [f"{one[key]:.1f}" for key in ("cpu_us", "second_half_cpu_us")]
            speed, rss = f"{one['pairs_per_second']:,.0f}", f"{one['max_rss_mb']:,.0f} MB"
            rows.append([heading, NAMES[name], speed, *costs, rss])
    return rows


def ratios_table(figures: Figures) -> list[list[str]]:
    """The targets, and the ratios of second halves that they are compared with."""
    others = {
        "getmany": "{} / bare `getmany` (target: at most 4)",
        "streams": "Kafka Streams / {} (target: at least 1.4)",
    }
    rows = [["traffic", *(one.format(NAMES[o]) for o in COLOURS for one in others.values())]]
    for heading, run in runs_of(figures):
        if "ratios" in run:
            row = [ratio(run["ratios"].get(f"{o}, {n}"), n) for o in COLOURS for n in others]
            rows.append([heading, *row])
    return rows


def ratio(found: dict[str, float] | None, of: str) -> str:
    """The median and the range over the rounds; the other program relative to us for `streams`."""
    if found is None:
        return ""
    middle, low, high = (found[name] for name in ("median", "least", "most"))
    if of == "streams":
        middle, low, high = 1 / middle, 1 / high, 1 / low
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def growth_table(figures: Figures) -> list[list[str]]:
    """What a pair costs for each variation of the traffic."""
    return [["", "", "CPU us per pair", "of bare `getmany`"], *figures["growth"]]


CHARTS: Final = {
    "pairs.json": ("benchmarks-pairs.svg", pairs_chart),
    "growth.json": ("benchmarks-growth.svg", growth_chart),
}
TABLES: Final = {
    "pairs": ("pairs.json", pairs_table),
    "ratios": ("pairs.json", ratios_table),
    "growth": ("growth.json", growth_table),
}
"""Those between the comments `<!-- table NAME -->` and `<!-- end -->` of the page."""


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


def figures_of(source: str) -> Figures:
    """The figures of a run in the repository."""
    found: Figures = json.loads((RESULTS / source).read_text("utf-8"))
    return found


def page() -> str:
    """The page with the tables of the figures in the repository."""

    def table(match: re.Match[str]) -> str:
        source, rows_of = TABLES[match[1]]
        header, *rows = rows_of(figures_of(source))
        lines = [header, ["---"] * len(header), *rows]
        content = "\n".join("| " + " | ".join(each) + " |" for each in lines)
        return f"<!-- table {match[1]} -->\n{content}\n<!-- end -->"

    marked = r"<!-- table (\w+) -->\n.*?<!-- end -->"
    return re.sub(marked, table, PAGE.read_text("utf-8"), flags=re.DOTALL)


def generated() -> dict[Path, str]:
    """The page and every picture by their paths, from the figures in the repository."""
    drawn = {
        ROOT / "docs" / place: picture(chart(figures_of(source)))
        for source, (place, chart) in CHARTS.items()
    }
    return {PAGE: page(), **drawn}


if __name__ == "__main__":
    for target, content in generated().items():
        target.write_text(content, "utf-8")

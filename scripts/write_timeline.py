"""Writes docs/timeline.svg: the event time of one query."""

from pathlib import Path
from typing import Final

PICTURE = Path(__file__).parent.parent / "docs" / "timeline.svg"

WIDTH, HEIGHT = 980, 424
LEFT: Final = 170
TIMES: Final = {
    "start": LEFT,
    "early": 245,
    "ranking": 320,
    "maturity": 490,
    "retention": 690,
    "late": 800,
    "reserved": 905,
    "end": 970,
}
"""Horizontal places of the points in event time; not to scale."""
TICKS: Final = (
    ("early", "-early_ms", "-1 min"),
    ("ranking", "ranking", "0"),
    ("maturity", "maturity_ms", "1 h"),
    ("retention", "retention_ms", "1 day"),
    ("late", "+remember_ms", "+1 h"),
    ("reserved", "+early_ms", "+1 min"),
)
"""Rows: (point, setting, default)."""
BANDS: Final = (
    (
        (100, "a judgment is"),
        ("start", "early", "grey", "orphan"),
        ("early", "retention", "green", "applied"),
        ("retention", "late", "amber", "late"),
        ("late", "end", "grey", "orphan"),
    ),
    (
        (152, "its grades are in"),
        ("early", "maturity", "green", "running and settled value"),
        ("maturity", "retention", "pale", "running value only"),
    ),
    (
        (204, "the query is"),
        ("ranking", "retention", "blue", "open"),
        ("retention", "end", "grey", "expired"),
    ),
    (
        (256, "its key is"),
        ("ranking", "reserved", "blue", "reserved"),
        ("reserved", "end", "grey", "free"),
    ),
)
"""Rows: (top, label), then (from, to, colour, text)."""
TIMERS: Final = (("maturity", "settle"), ("retention", "expire"), ("reserved", "release"))
WATERMARK, JUDGMENTS, RANKINGS = 630, 715, 770
"""Places of the watermark and of the clocks of both logs."""
STYLE: Final = """
  rect { rx: 4px; }
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .small { font-size: 11.5px; fill: #59636e; }
  .label { text-anchor: end; }
  .middle { text-anchor: middle; }
  .paper { fill: #ffffff; }
  .line { stroke: #59636e; fill: none; }
  .dash { stroke: #818b98; stroke-dasharray: 3 4; fill: none; }
  .mark { stroke: #cf222e; stroke-width: 2; fill: none; }
  .red { fill: #cf222e; font-weight: 600; }
  .dot { fill: #59636e; }
  .grey { fill: #e4e8ec; } .green { fill: #aceebb; } .pale { fill: #dafbe1; }
  .amber { fill: #fae17d; } .blue { fill: #b6dcff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #a2abb5; } .paper { fill: #0d1117; }
    .line { stroke: #a2abb5; } .dash { stroke: #6e7781; } .dot { fill: #a2abb5; }
    .mark { stroke: #ff7b72; } .red { fill: #ff7b72; }
    .grey { fill: #30363d; } .green { fill: #1f6f35; } .pale { fill: #17432a; }
    .amber { fill: #7a5c00; } .blue { fill: #174f86; }
  }
"""


def text(x: float, y: float, content: str, classes: str = "") -> str:
    """A line of text; *classes* are those of STYLE."""
    return f'<text x="{x:g}" y="{y:g}" class="{classes}">{content}</text>'


def line(x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    """A straight line."""
    return f'<path d="M{x1:g} {y1:g} L{x2:g} {y2:g}" class="{classes}"/>'


def axis() -> list[str]:
    """The axis of event time, with a dashed line down from each tick."""
    parts = [
        text(LEFT - 12, 66, "event time", "label"),
        line(LEFT, 62, 969, 62, "line"),
        '<path d="M961 57 L970 62 L961 67" class="line"/>',
    ]
    for place, name, default in TICKS:
        x = TIMES[place]
        parts += [
            text(x, 34, name, "middle"),
            text(x, 50, default, "middle small"),
            line(x, 57, x, 296, "dash"),
        ]
    return parts


def bands() -> list[str]:
    """The states of a query and its judgments between two points in event time."""
    parts = []
    for (top, label), *spans in BANDS:
        parts.append(text(LEFT - 12, top + 21, label, "label"))
        for first, last, colour, content in spans:
            x, width = TIMES[first], TIMES[last] - TIMES[first]
            parts += [
                f'<rect class="{colour}" x="{x + 1}" y="{top}" width="{width - 2}" height="32"/>',
                text(x + 10, top + 21, content),
            ]
    return parts


def clocks() -> list[str]:
    """The watermark behind the clocks of both logs, and the timers that it has passed."""
    parts = [text(LEFT - 12, 319, "timers", "label")]
    for place, name in TIMERS:
        done = TIMES[place] < WATERMARK
        x = TIMES[place]
        parts += [
            f'<circle cx="{x}" cy="308" r="5" class="{"red" if done else "dot"}"/>',
            text(x, 331, f"{name}: {'done' if done else 'not due'}", "middle"),
        ]
    parts += [
        text(LEFT - 12, 385, "clocks", "label"),
        line(LEFT, 380, 969, 380, "line"),
        line(WATERMARK, 92, WATERMARK, 390, "mark"),
        text(WATERMARK - 8, 370, "watermark", "label red"),
        line(WATERMARK, 402, JUDGMENTS, 402, "line"),
        text(WATERMARK - 8, 406, "out_of_orderness_ms", "label small"),
    ]
    for x, y, name in ((JUDGMENTS, 406, "judgments"), (RANKINGS, 368, "rankings")):
        parts += [
            f'<circle cx="{x}" cy="380" r="5" class="dot"/>',
            text(x + 10, y, f"clock of {name}"),
        ]
    return parts


def timeline() -> str:
    """The picture as SVG that follows the colour scheme of its reader."""
    parts = [*axis(), *bands(), *clocks()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Event time of one query: early, open, maturity, retention, reserved">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(timeline(), "utf-8")

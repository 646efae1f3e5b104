"""Plots of a report as SVG; colours are classes, so that the page chooses them."""

from collections.abc import Sequence
from html import escape
from math import sqrt
from typing import Final, NamedTuple

from evaluator.comparison.report import Cell

_SIDE: Final = 300
_MARGIN: Final = 34
_LARGEST_DOT: Final = 9.0
_SMALLEST_DOT: Final = 1.6


class Curve(NamedTuple):
    """Points of (x, y) in [0, 1]; *kind* is a class of the page."""

    name: str
    kind: str
    points: Sequence[tuple[float, float]]


def interval_bar(
    value: float, low: float, high: float, *, extent: float, kind: str, from_0: bool = False
) -> str:
    """A value with its interval on a scale from -extent, or 0, to extent; 0 is a line."""

    def x(number: float) -> str:
        share = number / extent if extent > 0 else 0.0
        share = share if from_0 else (share + 1) / 2
        return f"{100 * min(max(share, 0.0), 1.0):.2f}%"

    return (
        '<svg class="bar" aria-hidden="true">'
        f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="0" y2="100%"/>'
        f'<line class="{kind}" x1="{x(low)}" x2="{x(high)}" y1="50%" y2="50%"/>'
        f'<circle class="{kind}" cx="{x(value)}" cy="50%" r="4.5"/></svg>'
    )


def scatter(cells: Sequence[Cell], x_label: str, y_label: str) -> str:
    """Pairs by both values: dots with an area for the number of pairs; above the line: better."""
    most = max((cell.pairs for cell in cells), default=1)
    extent = max((1.0, *(max(cell.baseline, cell.other) for cell in cells)))
    dots = []
    for cell in sorted(cells, key=lambda cell: -cell.pairs):
        size = max(_SMALLEST_DOT, _LARGEST_DOT * sqrt(cell.pairs / most))
        kind = _kind_of(cell.other - cell.baseline)
        title = f"{cell.pairs:,} queries: {cell.baseline:.3g} to {cell.other:.3g}"
        dots.append(
            f'<circle class="{kind}" cx="{_x(cell.baseline / extent):.1f}" '
            f'cy="{_y(cell.other / extent):.1f}" r="{size:.1f}"><title>{title}</title></circle>'
        )
    diagonal = f'<line class="zero" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>'
    return _square(diagonal + "".join(dots), x_label, y_label, extent=extent)


def curves(lines: Sequence[Curve], x_label: str, y_label: str) -> str:
    """Lines with a dot for each point."""
    parts = []
    for line in lines:
        points = [f"{_x(x):.1f},{_y(y):.1f}" for x, y in line.points]
        parts.append(f'<polyline class="{line.kind}" points="{" ".join(points)}"/>')
        for x, y in line.points:
            title = f"{escape(line.name)}: {x_label} {x:.3f}, {y_label} {y:.3f}"
            parts.append(
                f'<circle class="{line.kind}" cx="{_x(x):.1f}" cy="{_y(y):.1f}" r="3.5">'
                f"<title>{title}</title></circle>"
            )
    return _square("".join(parts), x_label, y_label)


def _kind_of(difference: float) -> str:
    return "same" if difference == 0 else "better" if difference > 0 else "worse"


def _x(share: float) -> float:
    return _MARGIN + share * (_SIDE - _MARGIN - 8)


def _y(share: float) -> float:
    return _SIDE - _MARGIN - share * (_SIDE - _MARGIN - 8)


def _square(content: str, x_label: str, y_label: str, *, extent: float = 1.0) -> str:
    grid = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y, number = _x(share), _y(share), f"{share * extent:.3g}"
        grid.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_y(0)}" y2="{_y(1)}"/>')
        grid.append(f'<line class="grid" x1="{_x(0)}" x2="{_x(1)}" y1="{y}" y2="{y}"/>')
        grid.append(f'<text x="{x}" y="{_SIDE - 20}" text-anchor="middle">{number}</text>')
        grid.append(f'<text x="{_MARGIN - 5}" y="{y + 4}" text-anchor="end">{number}</text>')
    middle = _x(0.5)
    labels = (
        f'<text x="{middle}" y="{_SIDE - 4}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text transform="translate(9 {_y(0.5)}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    return (
        f'<svg class="square" viewBox="0 0 {_SIDE} {_SIDE}" role="img" '
        f'aria-label="{escape(y_label)} against {escape(x_label)}">'
        f"{''.join(grid)}{content}{labels}</svg>"
    )

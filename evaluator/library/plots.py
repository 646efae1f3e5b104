"""Plots with matplotlib, which is imported at the first plot only."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evaluator.core.measures import InvalidInputError
from evaluator.core.types.records import FloatArray


class Line(NamedTuple):
    """A line: `x` and `y` are `[n_points]`; *steps* hold each value back to the point before."""

    x: FloatArray
    y: FloatArray
    label: str
    steps: bool = False


class Bar(NamedTuple):
    """A mean with its interval, if there is one."""

    label: str
    value: float
    low: float | None
    high: float | None
    is_significant: bool = False


def axes_of(ax: Any) -> Any:
    """The given axes, or new ones. Raises InvalidInputError without matplotlib."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise InvalidInputError(
            "a plot needs matplotlib. Install it: pip install matplotlib."
        ) from None
    return plt.subplots(layout="constrained")[1]


def lines_plot(lines: Sequence[Line], x_label: str, y_label: str, *, ax: Any = None) -> Any:
    """Lines with labels on axes; returns the axes."""
    axes = axes_of(ax)
    for line in lines:
        style = {"drawstyle": "steps-pre"} if line.steps else {}
        axes.plot(line.x, line.y, label=line.label, **style)
    axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, 1.02))
    axes.legend()
    return axes


def bars_plot(bars: Mapping[str, Sequence[Bar]], x_label: str, *, ax: Any = None) -> Any:
    """A row per bar, grouped under headings, with its interval around the value; returns the axes.

    Significant ones are filled.
    """
    axes = axes_of(ax)
    rows = [(heading, bar) for heading, of_heading in bars.items() for bar in of_heading]
    for place, (_, bar) in enumerate(rows):
        if bar.low is not None and bar.high is not None:
            axes.plot([bar.low, bar.high], [place, place], color="C0")
        fill = "C0" if bar.is_significant else "white"
        axes.plot([bar.value], [place], "o", color="C0", markerfacecolor=fill)
    axes.axvline(0.0, color="0.6", linewidth=1, zorder=0)
    axes.set_yticks(range(len(rows)), [f"{bar.label}, {heading}" for heading, bar in rows])
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    return axes

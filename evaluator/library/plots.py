"""Plots with matplotlib, which is imported at the first plot only."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evaluator.core.measures import InvalidInputError
from evaluator.core.types.records import FloatArray


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


def line_plot(
    x: FloatArray,
    y: FloatArray,
    label: str,
    axis_names: tuple[str, str],
    *,
    ax: Any,
    style: str = "default",
) -> Any:
    """A line on axes, of which *axis_names* are those of x and y; returns the axes.

    *style* is a `drawstyle` of matplotlib.
    """
    axes = axes_of(ax)
    axes.plot(x, y, label=label, drawstyle=style)
    axes.set(xlabel=axis_names[0], ylabel=axis_names[1], ylim=(0, 1.02))
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

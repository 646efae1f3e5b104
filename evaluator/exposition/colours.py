"""The colours of all pages: that of a worker, reports and backtests."""

from pathlib import Path


def colours() -> str:
    """The style sheet that declares the colours, for light and dark themes."""
    return Path(__file__).with_name("colours.css").read_text("utf-8")

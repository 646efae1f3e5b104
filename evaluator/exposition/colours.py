"""The colours of all pages: that of a worker, reports and backtests."""

from importlib.resources import files


def colours() -> str:
    """The style sheet that declares the colours, for light and dark themes."""
    return files("evaluator.exposition").joinpath("colours.css").read_text("utf-8")

"""Log events as lines on stderr: JSON for programs, columns for people, each kind rate-limited."""

import logging
import sys
import time
from collections.abc import Callable
from typing import Final

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

BURST: Final = 20
"""Lines of one event within a minute that are written; the rest is counted and said once."""
MAX_EVENTS: Final = 1_000


def configure_log(
    *, log_format: str, log_level: str, monotonic: Callable[[], float] = time.monotonic
) -> None:
    """Sets structlog up for the process; *log_format* is auto, json or console."""
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    render: Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if console
        else structlog.processors.JSONRenderer()
    )
    level = logging.getLevelNamesMapping()[log_level.upper()]
    structlog.configure(
        processors=[
            RateLimit(monotonic),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # whatever it is by then
        cache_logger_on_first_use=False,
    )


class RateLimit:
    """Drops an event beyond its burst; the next one let through says how many were dropped."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[int, int]] = {}  # minute, lines within it

    def __call__(self, logger: FilteringBoundLogger, method: str, event: EventDict) -> EventDict:
        """The event, or DropEvent."""
        del logger, method
        name = str(event.get("event"))
        minute = int(self._monotonic() // 60)
        then, lines = self._seen.get(name, (minute, 0))
        if len(self._seen) >= MAX_EVENTS:
            self._seen.clear()
        if then != minute:
            self._seen[name] = (minute, 1)
            return {**event, "suppressed": lines - BURST} if lines > BURST else event
        self._seen[name] = (minute, lines + 1)
        if lines >= BURST:
            raise structlog.DropEvent
        return event

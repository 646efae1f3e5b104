"""Log events as lines on stderr, in JSON or columns, with a rate limit per event.

Messages of libraries become the event `library_message`, with the exception in a field.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable
from typing import Final

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from evaluator.tables import printable

BURST: Final = 20
"""Lines of one event that are written within a minute; the others are counted."""
MAX_EVENTS: Final = 1_000
MAX_MESSAGE_CHARS: Final = 500
MAX_ERROR_CHARS: Final = 2_000

log = structlog.get_logger(__name__)


def configure_log(
    *, log_format: str, log_level: str, monotonic: Callable[[], float] = time.monotonic
) -> None:
    """Configures structlog for the process; *log_format* is auto, json or console."""
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
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # looked up at each line
        cache_logger_on_first_use=False,
    )
    _take_libraries(level)


def _take_libraries(level: int) -> None:
    """Redirects messages and warnings of all libraries to structlog.

    aiokafka logs several errors per second while a broker is unavailable. The adapters log that
    once, so the lines of aiokafka are dropped unless *level* is debug.
    """
    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if not isinstance(each, LibraryHandler)]
    root.addHandler(LibraryHandler())
    logging.captureWarnings(True)
    aiokafka = logging.WARNING if level <= logging.DEBUG else logging.CRITICAL
    logging.getLogger("aiokafka").setLevel(aiokafka)


class LibraryHandler(logging.Handler):
    """Writes log records of libraries as events; the rate limit counts by source line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes *record* as one line."""
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  # the arguments do not fit the message
            message = str(record.msg)
        fields = {
            "logger": record.name,
            "at": f"{record.filename}:{record.lineno}",
            "message": _one_line(message)[:MAX_MESSAGE_CHARS],
        }
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1], limit=-4))
            fields["error"] = _one_line(trace)[-MAX_ERROR_CHARS:]
        if record.levelno >= logging.ERROR:
            log.error("library_message", **fields)
        else:
            log.warning("library_message", **fields)


def _one_line(text: str) -> str:
    return " | ".join(printable(line.strip()) for line in text.splitlines() if line.strip())


class RateLimit:
    """Drops an event beyond its burst; the next one has the number of dropped ones."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[int, int]] = {}  # minute, lines within it

    def __call__(self, logger: FilteringBoundLogger, method: str, event: EventDict) -> EventDict:
        """Returns the event, or raises DropEvent."""
        del logger, method
        name = " ".join(str(event.get(part)) for part in ("event", "logger", "at"))
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

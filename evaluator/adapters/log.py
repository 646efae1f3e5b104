"""Log events as lines on stderr: JSON for programs, columns for people, each kind rate-limited.

What the libraries log becomes the event `library_message`: one line, its exception in a field.
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
"""Lines of one event within a minute that are written; the rest is counted and said once."""
MAX_EVENTS: Final = 1_000
MAX_MESSAGE_CHARS: Final = 500
MAX_ERROR_CHARS: Final = 2_000

log = structlog.get_logger(__name__)


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
    _take_libraries(level)


def _take_libraries(level: int) -> None:
    """Leads the messages and warnings of all libraries here.

    aiokafka logs several errors a second while a broker is away. The adapters log that once, by the
    exceptions that they get, so its own lines are left out unless *level* is debug.
    """
    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if not isinstance(each, LibraryHandler)]
    root.addHandler(LibraryHandler())
    logging.captureWarnings(True)
    aiokafka = logging.WARNING if level <= logging.DEBUG else logging.CRITICAL
    logging.getLogger("aiokafka").setLevel(aiokafka)


class LibraryHandler(logging.Handler):
    """Writes a record of a library as an event, limited by the line of code that logs it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes *record* as one line, whatever its message and exception contain."""
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  # arguments that do not fit the message, or print badly
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
    """Drops an event beyond its burst; the next one let through says how many were dropped."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._seen: dict[str, tuple[int, int]] = {}  # minute, lines within it

    def __call__(self, logger: FilteringBoundLogger, method: str, event: EventDict) -> EventDict:
        """The event, or DropEvent."""
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

"""The logs of libraries: one line for each event; repeats are counted."""

import asyncio
import json
import logging
import warnings

import pytest
import structlog

from evaluator.adapters.log import BURST, MAX_ERROR_CHARS, LibraryHandler, configure_log

OTHERS = "GET /\x1b[2J\r\nTraceback (most recent call last):\n\x00\u2028\udc80 end"


@pytest.fixture
def configured():
    """Configures the log of the process, and restores it at the end."""
    before = logging.getLogger("aiokafka").level

    def configure(**options):
        configure_log(**{"log_format": "json", "log_level": "info", **options})

    yield configure
    logging.captureWarnings(False)
    logging.getLogger("aiokafka").setLevel(before)
    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if not isinstance(each, LibraryHandler)]
    structlog.reset_defaults()


@pytest.fixture
def lines(capsys):
    def read():
        return capsys.readouterr().err.splitlines()

    return read


def fail_with(text):
    raise ValueError(text)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_message_of_a_library_is_one_line_for_any_content(configured, lines, log_format):
    configured(log_format=log_format)
    try:
        fail_with(OTHERS)
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error handling %s", OTHERS)
    (line,) = lines()
    assert "library_message" in line
    assert "\x1b[2J" not in line


def test_the_exception_is_one_field(configured, lines):
    configured()
    try:
        fail_with("of other people")
    except ValueError:
        logging.getLogger("some.library").exception("it failed")
    (line,) = lines()
    event = json.loads(line)
    assert (event["event"], event["logger"], event["level"], event["message"]) == (
        *("library_message", "some.library", "error", "it failed"),
    )
    assert event["at"].startswith("test_log.py:")
    assert event["error"].startswith("Traceback (most recent call last): | File ")
    assert event["error"].endswith("| ValueError: of other people")


def test_an_overlong_message_is_cut(configured, lines):
    configured()
    try:
        fail_with("x" * 100_000 + "end")
    except ValueError:
        logging.getLogger("some.library").exception("y" * 100_000)
    (line,) = lines()
    assert len(line) < 4_000
    assert len(json.loads(line)["error"]) == MAX_ERROR_CHARS


def test_repeats_are_counted_by_the_line_of_code_that_logs_them(configured, lines):
    now = [0.0]
    configured(monotonic=lambda: now[0])
    library = logging.getLogger("some.library")
    for number in range(BURST + 5):
        library.warning(f"bytes {number}")
    library.warning("another one")
    assert [json.loads(line)["message"] for line in lines()] == [
        *(f"bytes {number}" for number in range(BURST)),
        "another one",
    ]
    now[0] = 61.0
    for number in range(2):
        library.warning(f"another line {number}")
    assert len(lines()) == 2


def test_the_exception_of_a_task_that_is_never_awaited_is_one_line(configured, lines):
    async def forget():
        task = asyncio.create_task(asyncio.to_thread(fail_with, "in a task\nof two lines"))
        await asyncio.wait({task})
        del task

    configured()
    asyncio.run(forget())
    (line,) = lines()
    event = json.loads(line)
    assert event["logger"] == "asyncio"
    assert event["message"].startswith("Task exception was never retrieved | future: ")
    assert "ValueError: in a task | of two lines" in event["error"]


def test_an_error_in_a_callback_of_the_loop_is_one_line(configured, lines):
    async def call():
        asyncio.get_running_loop().call_soon(fail_with, "in a callback")
        await asyncio.sleep(0)

    configured()
    asyncio.run(call())
    (line,) = lines()
    assert "ValueError: in a callback" in json.loads(line)["error"]


def test_warnings_are_events_too(configured, lines):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)  # an earlier test may have enabled it
        configured()
        warnings.warn("an old name", DeprecationWarning, stacklevel=1)
    (line,) = lines()
    assert json.loads(line)["logger"] == "py.warnings"
    assert "an old name" in json.loads(line)["message"]


@pytest.mark.parametrize(("log_level", "n_lines"), [("info", 0), ("debug", 1)])
def test_the_kafka_client_is_silent_unless_the_level_is_debug(
    configured, lines, log_level, n_lines
):
    configured(log_level=log_level)
    logging.getLogger("aiokafka.conn").error("Unable to connect")
    assert len(lines()) == n_lines


def test_a_custom_level_is_logged_as_the_next_lower_level(configured, lines):
    configured()
    logging.getLogger("some.library").log(37, "between warning and error")
    assert json.loads(lines()[0])["level"] == "warning"


def test_logging_configured_twice_writes_each_line_once(configured, lines):
    configured()
    configured()
    logging.getLogger("some.library").error("once")
    assert len(lines()) == 1


def test_arguments_that_do_not_fit_their_message_raise_no_error(configured, lines):
    configured()
    record = logging.makeLogRecord({"msg": "%d of %d", "args": ("one",), "levelno": logging.ERROR})
    LibraryHandler().emit(record)
    assert json.loads(lines()[0])["message"] == "%d of %d"

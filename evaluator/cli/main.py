"""Runs a command: exit codes and errors."""

import asyncio
import errno
import os
import re
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from evaluator.adapters.http import HttpUnusable
from evaluator.adapters.log import configure_log
from evaluator.cli.arguments import Command, new_parser
from evaluator.cli.wiring import UsageError
from evaluator.comparison.run import UnknownName
from evaluator.config import ConfigError, load_settings
from evaluator.config.measures import measure_set, parse_measures
from evaluator.core.measures import MeasureFailedError
from evaluator.ports import (
    MORE_FILES,
    ResultsUnusable,
    SourceAmbiguous,
    SourceUnavailable,
    SourceUnusable,
    StateUnusable,
)
from evaluator.replay.fit import FitRefused
from evaluator.wire.state.task_rows import StateDamaged

USAGE: Final = 2
INPUT_UNUSABLE: Final = 3
STATE_UNUSABLE: Final = 4

OUTPUT_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of writing the output of a command."""

_LONG_WORD: Final = re.compile(r"[^\s/]{256,}")  # longer than any part of a path


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    try:
        try:
            return _run(arguments)
        finally:
            if sys.stdout is not None:  # None: closed from the start
                sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS:
            raise
        _discard_output()
        why = f"the output cannot be written: {error.strerror}. Free space or write elsewhere."
        return _fail(why, STATE_UNUSABLE)


def _discard_output() -> None:
    """Discards unwritten output, so that the interpreter does not flush it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    try:
        options = new_parser().parse_args(arguments)
        _raise_file_limit()
        settings = load_settings(
            config_file=options.config,
            environment=os.environ,
            assignments=options.set,
            parse_measures=parse_measures,
        )
        measure_set(settings)  # refuses unsupported combinations
        configure_log(log_format=settings.log_format, log_level=settings.log_level)
        command: Command = options.command
        return command(options, settings)
    except (
        ConfigError,
        UsageError,
        UnknownName,
        FitRefused,
        ResultsUnusable,
        HttpUnusable,
        SourceAmbiguous,
        MeasureFailedError,
    ) as error:
        return _fail(error, USAGE)
    except SourceUnusable as error:
        return _fail(error, INPUT_UNUSABLE)
    except SourceUnavailable as error:
        remedy = "Check --source, the network and security_protocol."
        return _fail(f"{error} {remedy}", INPUT_UNUSABLE)
    except (StateUnusable, StateDamaged) as error:
        return _fail(error, STATE_UNUSABLE)
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE}:
            raise
        return _fail(StateUnusable.because(str(error), MORE_FILES), STATE_UNUSABLE)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


def _raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fail(error: Exception | str, code: int) -> int:
    text = _LONG_WORD.sub(_abbreviated, " ".join(str(error).split()))
    print(f"evaluator: {text}", file=sys.stderr)
    return code


def _abbreviated(word: re.Match[str]) -> str:
    return f"{word[0][:40]}... ({len(word[0])} characters)"

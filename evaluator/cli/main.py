"""Runs a command; loads only the modules that the command needs."""

import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from evaluator.cli.arguments import new_parser
from evaluator.cli.exits import STATE_UNUSABLE, USAGE, UsageError, fail

OUTPUT_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Errors of writing the output of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # by default numpy starts one per core
    gc.disable()  # while modules are loaded: it would take a seventh of their time
    try:
        try:
            return _run(arguments)
        finally:
            gc.enable()
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
        return fail(why, STATE_UNUSABLE)


def _discard_output() -> None:
    """Discards unwritten output, so that the interpreter does not flush it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        if arguments is None:  # as a program: an end by SIGTERM removes hidden files, too
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        options = new_parser(*words[:1]).parse_args(words)
        from evaluator.cli.execution import execute  # noqa: PLC0415 - `--help` does without it

        return execute(options)
    except UsageError as error:
        return fail(error, USAGE)
    except KeyboardInterrupt:
        return 130

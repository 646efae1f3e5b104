"""Executes a parsed command: its settings, and the exit codes of its errors."""

import argparse
import asyncio
import errno
import gc
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from keyword import iskeyword

from evaluator.adapters.log import configure_log
from evaluator.cli.exits import INPUT_UNUSABLE, STATE_UNUSABLE, USAGE, fail
from evaluator.config import ConfigError, Settings, load_settings
from evaluator.config.measures import measure_set
from evaluator.core.measures import MeasureFailedError
from evaluator.ports import (
    MORE_FILES,
    RequestRefused,
    SourceAmbiguous,
    SourceUnavailable,
    SourceUnusable,
    StateUnusable,
)
from evaluator.wire.state.task_rows import StateDamaged

Command = Callable[[argparse.Namespace, Settings], int]


def command_of(module: str, name: str) -> Command:
    """A command; its module and its imports are loaded now."""
    function = f"{name}_" if iskeyword(name) else name.replace("-", "_")
    found: Command = getattr(import_module(f"evaluator.cli.{module}"), function)
    return found


def execute(options: argparse.Namespace) -> int:
    """Runs the command of *options*; returns its exit code. Raises UsageError."""
    try:
        _raise_file_limit()
        settings = settings_of(options)
        measure_set(settings)  # refuses unsupported combinations
        configure_log(log_format=settings.log_format, log_level=settings.log_level)
        command = command_of(*options.command)
        gc.freeze()  # what is loaded stays; `main` has disabled the collection
        gc.enable()
        if "out" in options:
            from evaluator.cli.apart import require_outputs_apart_from_inputs  # noqa: PLC0415 - not for a worker

            require_outputs_apart_from_inputs(options, settings)
        return command(options, settings)
    except (ConfigError, RequestRefused, SourceAmbiguous, MeasureFailedError) as error:
        return fail(error, USAGE)
    except SourceUnusable as error:
        return fail(error, INPUT_UNUSABLE)
    except SourceUnavailable as error:
        return fail(f"{error} {error.remedy}", INPUT_UNUSABLE)
    except (StateUnusable, StateDamaged) as error:
        return fail(error, STATE_UNUSABLE)
    except OSError as error:
        if "temporary directory" in str(error):  # of `tempfile`
            return fail(f"{error.strerror}. Set TMPDIR to a folder that can be written.", USAGE)
        if error.errno not in {errno.EMFILE, errno.ENFILE}:
            raise
        return fail(StateUnusable.because(str(error), MORE_FILES), STATE_UNUSABLE)
    except asyncio.CancelledError:
        return 130


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings of a command line, its file and the environment. Raises ConfigError."""
    assignments = list(options.set)
    if (mapping := getattr(options, "mapping", None)) is not None:
        assignments.append(f"mapping={mapping}")
    return load_settings(
        config_file=options.config, environment=os.environ, assignments=assignments
    )


def _raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""Arguments, exit codes and errors of every command."""

import argparse
import asyncio
import errno
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from evaluator.adapters.http import HttpUnusable
from evaluator.adapters.log import configure_log
from evaluator.cli import administration, batch, comparison, health, learning, live, totals, weights
from evaluator.cli.ranges import add_range_to
from evaluator.cli.skips import add_skip_to
from evaluator.cli.wiring import KAFKA_SOURCE, UsageError
from evaluator.comparison.run import UnknownName
from evaluator.config import ConfigError, Settings, load_settings
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
from evaluator.version import __version__
from evaluator.wire.state.task_rows import StateDamaged

USAGE: Final = 2
INPUT_UNUSABLE: Final = 3
STATE_UNUSABLE: Final = 4

OUTPUT_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Reasons why what a command prints cannot be written."""

_LONG_WORD: Final = re.compile(r"[^\s/]{256,}")  # longer than any part of a path

Command = Callable[[argparse.Namespace, Settings], int]


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
    """Drops what cannot be written, so that the interpreter does not try it again at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    asked = _parser().parse_args(arguments)
    _raise_file_limit()
    try:
        settings = load_settings(
            config_file=asked.config,
            environment=os.environ,
            assignments=asked.set,
            parse_measures=parse_measures,
        )
        measure_set(settings)  # refuses what cannot go together
        configure_log(log_format=settings.log_format, log_level=settings.log_level)
        command: Command = asked.command
        return command(asked, settings)
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


class _Parser(argparse.ArgumentParser):
    """One whose errors are one line, as all others are."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_fail(f"{message}. `{self.prog} --help` lists what there is.", USAGE))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="evaluator",
        description="Joins rankings with delayed judgments and keeps exact measures of quality.",
    )
    parser.add_argument("--version", action="version", version=f"evaluator {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_replay(commands)
    learning.add_to(
        _command(commands, "fit", learning.fit, "learn linear weights offline, into a file")
    )
    _add_demo(commands)
    _add_check(commands)
    _add_topics(commands)
    _add_totals(commands)
    _source(_command(commands, "leader", live.leader, "the elected part alone"), KAFKA_SOURCE)
    _add_weights(commands)
    _add_schema(commands)
    health.add_to(
        _command(commands, "health", health.health, "ask the worker of this machine how it is")
    )
    comparison.add_to(
        _command(
            commands,
            "compare",
            comparison.compare,
            "hold rankers against each other on the same queries",
            with_settings=False,
        )
    )
    return parser


Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def _command(
    commands: Commands,
    name: str,
    command: Command,
    help_text: str,
    *,
    with_settings: bool = True,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}."
    )
    parser.set_defaults(command=command, config=None, set=[])
    if not with_settings:
        return parser
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one setting; may be repeated (docs/settings.md)",
    )
    return parser


def _source(parser: argparse.ArgumentParser, forms: str) -> None:
    parser.add_argument("--source", required=True, metavar="SRC", help=forms)


def _add_run(commands: Commands) -> None:
    parser = _command(commands, "run", live.run, "the live worker")
    _source(parser, KAFKA_SOURCE)
    parser.add_argument(
        "--until-end",
        action="store_true",
        help="stop once what was there at the start is processed and committed",
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="go on although the inputs no longer have all that the state was made of",
    )
    add_skip_to(parser)


def _add_replay(commands: Commands) -> None:
    parser = _command(commands, "replay", batch.replay, "evaluate a pinned range into files")
    add_range_to(parser, kafka=KAFKA_SOURCE)
    add_skip_to(parser)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where files go")
    parser.add_argument("--force", action="store_true", help="also into a directory not empty")
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="measure these weights, e.g. of `fit`, as one more ranker: weights",
    )
    parser.add_argument(
        "--at-end",
        choices=("settle", "hold"),
        help="settle what is young at the end, or hold it (default: settle files, hold Kafka)",
    )
    parser.add_argument(
        "--openmetrics",
        type=Path,
        metavar="FILE",
        help="also write the settled counters in event time, for Prometheus (docs/backfill.md)",
    )
    parser.add_argument(
        "--openmetrics-label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a label of every series there, e.g. job=evaluator; may be repeated "
        "(run: by default what manifest.json calls the chain begins with)",
    )


def _add_demo(commands: Commands) -> None:
    parser = _command(commands, "demo", live.demo, "a whole world in one process, no broker")
    parser.add_argument("--keep", action="store_true", help="leave page and /metrics up")
    parser.add_argument("--seed", type=int, default=7, help="of the world (default 7)")


def _add_check(commands: Commands) -> None:
    parser = _command(
        commands, "check", administration.check, "what is wrong with broker and topics"
    )
    _source(parser, KAFKA_SOURCE)
    parser.add_argument(
        "--principal",
        metavar="User:NAME",
        help="whom to print the rights for (default: who logs in with these settings)",
    )


def _add_topics(commands: Commands) -> None:
    topics = commands.add_parser("topics", help="plan or create topics")
    actions = topics.add_subparsers(required=True, metavar="plan|create")
    for name, command, help_text in (
        ("plan", administration.plan, "say which topics there should be"),
        ("create", administration.create, "create the topics that are missing"),
    ):
        parser = _command(actions, name, command, help_text)
        _source(parser, KAFKA_SOURCE)
        parser.add_argument("--partitions", type=int, metavar="N", help="of inputs to be made")
        parser.add_argument(
            "--no-timestamp-bound",
            action="store_true",
            help="let the broker take records of new inputs however far ahead they are stamped",
        )
        if name == "create":
            parser.add_argument(
                "--replication-factor", type=int, default=-1, metavar="N", help="-1: the broker's"
            )


def _add_totals(commands: Commands) -> None:
    parser = _command(
        commands, "totals", totals.totals, "exact totals of all workers, from their checkpoints"
    )
    _source(parser, KAFKA_SOURCE)


def _add_weights(commands: Commands) -> None:
    about = "what the leader has said of weights, and what is asked of it"
    parser = commands.add_parser("weights", help=about, description=f"{about}.".capitalize())
    actions = parser.add_subparsers(required=True, metavar="show|freeze|roll-back|forget")
    weights.add_to(partial(_command, actions))


def _add_schema(commands: Commands) -> None:
    parser = _command(
        commands,
        "schema",
        administration.schema,
        "print the JSON Schema of a message",
        with_settings=False,
    )
    parser.add_argument("name", nargs="?", help="of the message; without it, the list of names")

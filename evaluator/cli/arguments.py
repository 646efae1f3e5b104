"""The commands and their options."""

import argparse
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from evaluator.cli.exits import UsageError
from evaluator.cli.options import COMPARE, REPORT, Option
from evaluator.cli.options import option as _option
from evaluator.version import __version__

KAFKA_SOURCE: Final = "kafka://HOST:PORT[,HOST:PORT]"
MOST_SHOWN: Final = 20
"""Records of one model that `weights show` prints."""

_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. `{self.prog} --help` lists the options.")


def _many(name: str, text: str, metavar: str) -> Option:
    """An option that may be repeated."""
    return _option(name, text, action="append", default=[], metavar=metavar)


_SETTINGS: Final = (
    _option("--config", "settings in TOML", type=Path, metavar="FILE"),
    _many("--set", "one setting; may be repeated (docs/settings.md)", "NAME=VALUE"),
)
_SOURCE: Final = _option("--source", KAFKA_SOURCE, required=True, metavar="SRC")
_INPUT: Final = (  # one of them
    _option("--source", f"{KAFKA_SOURCE}, file://DIR or archive://URL", metavar="SRC"),
    _option(
        "--samples",
        "offline samples instead: NDJSON, one row per candidate, also .gz or .zst",
        type=Path,
        metavar="FILE",
    ),
)
_CLOCK: Final = "the first record whose clock reaches this time (ISO 8601 or epoch ms)"
_RANGE: Final = (
    _option("--from", f"begin with {_CLOCK}", dest="begin", metavar="T"),
    _option("--to", f"end before {_CLOCK}", dest="end", metavar="T"),
)
_SKIP: Final = _many(
    "--skip",
    "skip this unreadable record, or with OFFSET-OFFSET these records; may be repeated",
    "TOPIC-PARTITION:OFFSET",
)
_MAPPING: Final = _option(
    "--mapping", "map the records of other topics (docs/mapping.md)", type=Path, metavar="FILE"
)
_TOPICS: Final = (
    _SOURCE,
    _MAPPING,
    _option("--partitions", "partitions of new input topics", type=int, metavar="N"),
    _option(
        "--no-timestamp-bound",
        "let the broker accept records of new inputs with any timestamp in the future",
        action="store_true",
    ),
)
_MODEL: Final = _option("--model", "model of the rankings", metavar="NAME")
_REASON: Final = _option("--reason", "kept with the command and in the log", required=True)

_TRY: Final = (
    (_MAPPING[0], {**_MAPPING[1], "required": True}),
    _option("--source", f"{KAFKA_SOURCE} or file://DIR", required=True, metavar="SRC"),
    _option("--sample", "records of each topic (default 100)", type=int, default=100, metavar="N"),
)

_MAP: Final = (
    _SOURCE,
    _MAPPING,
    _option("--to", "topics to write", required=True, metavar="RANKINGS,JUDGMENTS"),
    _option(
        "--accept-repeats",
        "continue although messages may be repeated and count twice",
        action="store_true",
    ),
)
_RUN: Final = (
    _SOURCE,
    _MAPPING,
    _option(
        "--until-end",
        "stop when the records present at the start are processed and committed",
        action="store_true",
    ),
    _option(
        "--accept-loss",
        "continue although the inputs no longer contain all records of the state",
        action="store_true",
    ),
    _SKIP,
)
_OUT: Final = _option("--out", "directory of the results", required=True, type=Path, metavar="DIR")
_FORCE: Final = _option(
    "--force", "also write to a directory that is not empty", action="store_true"
)
_FORMAT: Final = _option(
    "--format",
    "also write evaluations and settled queries as Parquet (docs/history.md)",
    choices=("ndjson", "parquet"),
    default="ndjson",
)
_PROCESSES: Final = _option(
    "--processes",
    "number of processes that evaluate tasks (default: one per core, for much input)",
    type=int,
    metavar="N",
)
_VERIFY: Final = (
    _option("directory", "written by `replay` or `merge`", type=Path, metavar="DIR"),
    _option("--source", "also recompute the results from this source", metavar="SRC"),
    _MAPPING,
    _PROCESSES,
)
_MERGE: Final = (
    _option("directories", "written by `replay` or `merge`", nargs="+", type=Path, metavar="DIR"),
    _OUT,
    _FORCE,
    _FORMAT,
)
_REPLAY: Final = (
    *_INPUT,
    _MAPPING,
    *_RANGE,
    _SKIP,
    _OUT,
    _FORCE,
    _FORMAT,
    _option(
        "--tasks",
        "evaluate only these tasks (partitions), e.g. 0-15 or 0-3,8: a shard for `merge`",
        metavar="TASKS",
    ),
    _PROCESSES,
    _option("--strict", "refuse an archive in which offsets are missing", action="store_true"),
    _option(
        "--weights",
        "measure these weights, e.g. of `fit`, as an additional ranker: weights",
        type=Path,
        metavar="FILE",
    ),
    _many(
        "--scorer",
        "measure the scores of a Python function as an additional ranker; may be repeated "
        "(docs/learning.md)",
        "NAME=MODULE:FUNCTION",
    ),
    _option(
        "--schemas",
        "schemas.json of an earlier replay, which it repeats (docs/formats.md)",
        type=Path,
        metavar="FILE",
    ),
    _option(
        "--at-end",
        "settle queries younger than maturity_ms, or hold them open (default: settle files, hold "
        "Kafka)",
        choices=("settle", "hold"),
    ),
    _option(
        "--openmetrics",
        "also write the settled counters in event time, for Prometheus (docs/backfill.md)",
        type=Path,
        metavar="FILE",
    ),
    _many(
        "--openmetrics-label",
        "a label of every series of --openmetrics, e.g. job=evaluator; may be repeated (default of "
        "`run`: the first digits of `chain` in manifest.json)",
        "NAME=VALUE",
    ),
)
_FIT: Final = (
    *_INPUT,
    _MAPPING,
    *_RANGE,
    _option("--out", "file of the weights, in JSON", required=True, type=Path, metavar="FILE"),
    _option("--force", "replace a file that is not empty", action="store_true"),
    _option("--epochs", "passes over the groups (default 10)", type=int, default=10, metavar="N"),
    _option(
        "--shuffle-seed",
        "shuffle the groups in each epoch, in the same way for the same N (default: no shuffling)",
        type=int,
        metavar="N",
    ),
    _option(
        "--validate",
        "share of the groups for validation, which chooses the best epoch; 0 for none (default 0.2 "
        "of 200 groups or more)",
        type=float,
        metavar="X",
    ),
    _option("--keep-loss", "do not also try lambdarank with the default loss", action="store_true"),
    _option("--model", "name of the model in the record", default="", metavar="NAME"),
)
_DEMO: Final = (
    _option("--keep", "serve the page and /metrics until Ctrl-C", action="store_true"),
    _option("--seed", "of the traffic (default 7)", type=int, default=7),
)


_INSPECT: Final = (
    _option("trace", "trace_id of the query", metavar="TRACE"),
    _option("node", "node_id of the query; without it, all queries", nargs="?", metavar="NODE"),
    _option("--source", f"its messages: {KAFKA_SOURCE} or file://DIR", metavar="SRC"),
    _MAPPING,
    _option("--results", "output directory of `replay`", type=Path, metavar="DIR"),
    _RANGE[0],
)
_PRINCIPAL: Final = _option(
    "--principal",
    "principal of the printed rights (default: the login of these settings)",
    metavar="User:NAME",
)
_READY: Final = _option("--ready", "request /readyz instead of /livez", action="store_true")
_NAME: Final = _option("name", "of the message; without it, list the names", nargs="?")
_MEMBER: Final = _option("name", "its group_instance_id", metavar="NAME")
_PRESET: Final = _option("name", "of the mapping; without it, list the names", nargs="?")
_REPLICATION: Final = _option("--replication-factor", "-1: the broker's", type=int, default=-1)
_TO_VERSION: Final = _option(
    "--to", "as `show` prints it", type=int, required=True, metavar="VERSION"
)

_SERIES: Final = _many(
    "--series",
    "label of the series, e.g. model=gamma; may be repeated, of the labels model, variant, ranker, "
    "measure, segment, level and kind",
    "LABEL=VALUE",
)
_EXCLUDED: Final = (
    _option("--from", "begin, ISO 8601 or epoch ms", dest="begin", required=True, metavar="T"),
    _option("--to", "end, ISO 8601 or epoch ms", dest="end", required=True, metavar="T"),
)
_SETTLED: Final = _option("--settled", "a folder of `replay`", type=Path, metavar="DIR")
_EITHER: Final = (*_INPUT, _SETTLED)
_PICTURE: Final = _option("--out", "a picture: one HTML file", type=Path, metavar="FILE")
_REPLACE: Final = _option("--force", "replace a file that is not empty", action="store_true")
_GRID: Final = _option(
    "--grid",
    "also try these values, or without any some of alarm_tolerance and alarm_budget_days that no "
    "other --grid names; may be repeated",
    action="append",
    nargs="?",
    const="",
    metavar="NAME=VALUE,VALUE",
)
_ALSO_SET: Final = _option(
    "--settings",
    "the same as --set, with several at once",
    dest="set",
    action="extend",
    nargs="+",
    default=[],
    metavar="NAME=VALUE",
)
_BACKTEST: Final = (_SETTLED, _ALSO_SET, _INPUT[0], _MAPPING, *_RANGE, _GRID, _PICTURE, _REPLACE)

_ADD: Final = _many("--add", "add totals of other topics, printed by this command", "FILE")

_Row: TypeAlias = tuple[str, str, str, Sequence[Option]]
"""A command, the module of `evaluator.cli` with the function of its name, its text and options."""

_COMMANDS: Final[Sequence[_Row]] = (
    ("run", "live", "run a live worker", _RUN),
    ("replay", "batch", "evaluate a pinned range into files", _REPLAY),
    ("merge", "shards", "merge the results of shards into one, exactly", _MERGE),
    ("verify", "verification", "check results, or recompute them", _VERIFY),
    ("fit", "learning", "learn linear weights offline, into a file", _FIT),
    ("demo", "demo", "run the demo in one process, without a broker", _DEMO),
    (
        "check",
        "administration",
        "find defects of broker, topics and rights",
        (_SOURCE, _MAPPING, _PRINCIPAL),
    ),
    ("totals", "totals", "print the exact totals of all workers", (_SOURCE, _MAPPING, _ADD)),
    ("inspect", "inspection", "show one query with its messages, outcomes and values", _INSPECT),
    ("leader", "live", "run a leader without a worker", (_SOURCE, _MAPPING)),
    ("health", "health", "check the worker of this machine", (_READY,)),
    ("topics plan", "administration", "print the planned topics", _TOPICS),
    ("topics create", "administration", "create the missing topics", (*_TOPICS, _REPLICATION)),
    (
        "weights show",
        "weights",
        f"show the last {MOST_SHOWN} records of each model's weights",
        (_SOURCE, _MODEL),
    ),
    (
        "weights freeze",
        "weights",
        "stop learning for a model, until it is rolled back",
        (_SOURCE, _MODEL, _REASON),
    ),
    (
        "weights roll-back",
        "weights",
        "make an older version live again",
        (_SOURCE, _MODEL, _REASON, _TO_VERSION),
    ),
    (
        "weights forget",
        "weights",
        "delete the state of the leader; live weights remain live",
        (_SOURCE,),
    ),
    ("alarms list", "alarms", "list the series that have had an alarm", (_SOURCE,)),
    (
        "alarms acknowledge",
        "alarms",
        "acknowledge alarms: they stay on without notifications",
        (_SOURCE, _SERIES),
    ),
    ("alarms accept", "alarms", "accept the level since the onset as normal", (_SOURCE, _SERIES)),
    (
        "alarms exclude",
        "alarms",
        "exclude hours from windows and references: a holiday, an incident",
        (_SOURCE, _SERIES, *_EXCLUDED),
    ),
    ("alarms backtest", "backtest", "show alarms of past weeks under these settings", _BACKTEST),
    (
        "group remove",
        "administration",
        "remove a worker with a group_instance_id for good, so that others take its tasks",
        (_SOURCE, _MEMBER),
    ),
    ("map", "map", "write the records of other topics as rankings and judgments", _MAP),
    ("mapping try", "mapping", "map a sample; exit 5 if a record is refused", _TRY),
    ("mapping presets", "mapping", "list the shipped mappings, or print one", (_PRESET,)),
    ("schema", "administration", "print the JSON Schema of a message", (_NAME,)),
    ("compare", "comparison", "compare rankers on the same queries", COMPARE),
    ("report", "comparison", "write comparisons as one HTML file with plots", REPORT),
)
_GROUPS: Final = {
    "alarms": "list alarms, and send commands on them to the leader",
    "group": "manage the members of the group",
    "mapping": "map the records of other topics",
    "topics": "plan or create topics",
    "weights": "show published weights, and send commands to the leader",
}
_WITHOUT_SETTINGS: Final = ("presets", "schema", "compare", "merge", "report")


@cache
def new_parser(only: str = "") -> argparse.ArgumentParser:
    """The parser of all commands, or of those that begin with *only* if there are any.

    Parsing raises UsageError; `command` is a module and a name.
    """
    parser = _Parser(
        prog="evaluator",
        description="Joins rankings with delayed judgments and keeps exact measures of quality.",
    )
    parser.add_argument("--version", action="version", version=f"evaluator {__version__}")
    groups = {"": parser.add_subparsers(required=True, metavar="COMMAND")}
    chosen = [row for row in _COMMANDS if row[0].split()[0] == only]
    for command, module, text, options in chosen or _COMMANDS:
        group, _, name = command.rpartition(" ")
        if group not in groups:
            groups[group] = _new_group(groups[""], group)
        of_all = () if name in _WITHOUT_SETTINGS else _SETTINGS
        _add(groups[group], name, module, text, (*of_all, *options))
    return parser


def _new_group(commands: _Commands, group: str) -> _Commands:
    text = _GROUPS[group]
    parser = commands.add_parser(group, help=text, description=f"{text}.".capitalize())
    names = [row[0].split()[-1] for row in _COMMANDS if row[0].startswith(f"{group} ")]
    return parser.add_subparsers(required=True, metavar="|".join(names))


def _add(commands: _Commands, name: str, module: str, text: str, options: Sequence[Option]) -> None:
    parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.set_defaults(command=(module, name), config=None, set=[], skip=[], samples=None)
    inputs = None
    for option in options:
        if option in _EITHER:
            inputs = inputs or parser.add_mutually_exclusive_group(required=True)
        target = inputs if inputs is not None and option in _EITHER else parser
        target.add_argument(option[0], **option[1])

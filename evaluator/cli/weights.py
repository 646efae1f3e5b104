"""`weights`: shows published weights, and sends operator commands to the leader."""

import argparse
import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

from evaluator.adapters.kafka import Connection, leader_fenced, read_weights, write_to_weights
from evaluator.cli.arguments import MOST_SHOWN
from evaluator.cli.exits import UsageError
from evaluator.cli.leader import transforms_of
from evaluator.cli.wiring import connection_of, readable, warn
from evaluator.config import Settings
from evaluator.core.learning.transforms import loaded, of_features
from evaluator.core.online.events import LIVE, Command
from evaluator.ports import Fenced, Finding, SourceUnavailable, SourceUnusable
from evaluator.tables import format_table, printable, utc_time
from evaluator.wire.records import OutputRecord
from evaluator.wire.weights.leader_state import (
    STATE_KEY,
    CommandRefused,
    StateRefused,
    command_key,
    command_model_of,
    command_record,
    emptied_state,
    read_command,
    read_log_record,
    read_state,
)
from evaluator.wire.weights.weights_record import Weights

_MOST_ATTEMPTS: Final = 50
_MOST_NAMES: Final = 10
_OTHER_TRANSFORMS: Final = (
    "With these settings the leader starts over in a new epoch. Set feature_transforms to what "
    "`evaluator weights show` prints to continue."
)
_HEADER = ("model", "version", "epoch", "status", "of", "event time (UTC)", "evidence", "weights")


def show(options: argparse.Namespace, settings: Settings) -> int:
    """`weights show`: a table."""
    records = _published(options, settings)
    models = sorted({record["model"] for record in records})
    if options.model is not None and options.model not in models:
        raise UsageError(_unknown(options.model, models))
    rows = []
    for model in models if options.model is None else [options.model]:
        mine = [record for record in records if record["model"] == model]
        live = [record["version"] for record in mine if record["status"] in LIVE][-1:]
        rows += [_row(record, live=record["version"] in live) for record in mine[-MOST_SHOWN:]]
    print(
        format_table(_HEADER, rows, numbers=(1, 2, 4))
        if rows
        else "No weights have been published yet."
    )
    return 0


def _row(record: dict[str, Any], *, live: bool) -> list[str]:
    evidence = record.get("evidence") or {}
    weights = zip(record["feature_names"], record["weights"], strict=True)
    transforms = loaded(record.get("transforms") or {})
    shown = {name: f"[{transform.text}]" for name, transform in transforms.items()}
    return [
        printable(record["model"]),
        str(record["version"]),
        str(record["epoch"]),
        f"{record['status']} (live)" if live else record["status"],
        str(record["of_version"]),
        utc_time(record["event_time_ms"] / 1000, "%Y-%m-%d %H:%M"),
        f"{evidence['mean_difference']:+.4f} in {evidence['traces']} traces"
        if evidence.get("mean_difference") is not None
        else printable(record.get("reason") or ""),
        " ".join(f"{printable(name)}{shown.get(name, '')}={value:.4g}" for name, value in weights),
    ]


def freeze(options: argparse.Namespace, settings: Settings) -> int:
    """`weights freeze`."""
    model = _model(options, _published(options, settings))
    _send(options, settings, model, Command(_number(), "freeze", options.reason))
    return 0


def roll_back(options: argparse.Namespace, settings: Settings) -> int:
    """`weights roll-back`."""
    records = _published(options, settings)
    model = _model(options, records)
    versions = {record["version"]: record for record in records if record["model"] == model}
    if options.to not in versions:
        raise UsageError(
            f"{model!r} has no version {options.to}; `evaluator weights show` lists the versions."
        )
    found = versions[options.to]
    weights = Weights.model_validate(found)
    command = Command(
        _number(),
        "roll_back",
        options.reason,
        tuple(found["weights"]),
        tuple(found["feature_names"]),
        weights.table(),
        weights.of_features,
    )
    _send(options, settings, model, command)
    return 0


def forget(options: argparse.Namespace, settings: Settings) -> int:
    """`weights forget`."""
    connection = connection_of(options.source, settings)
    for _ in range(_MOST_ATTEMPTS):
        with contextlib.suppress(Fenced):  # the leader has published meanwhile
            asyncio.run(_forget(connection, settings))
            print("The state is deleted. The leader learns from the beginning.")
            return 0
    raise SourceUnusable("The leader has published meanwhile; repeat the command.")


async def _forget(connection: Connection, settings: Settings) -> None:
    """Deletes the state; nothing is published while the rest of the topics is read."""
    prefix, last_command = settings.written_prefix, dict[str, int]()
    group = settings.group_id, settings.session_timeout_ms
    async with leader_fenced(connection, prefix, *group) as write:
        published = _readable(await read_weights(connection, prefix, "weights-log"))
        for record in await read_weights(connection, prefix, "weights"):
            model = None if record.key is None else command_model_of(record.key)
            if model is not None:
                with contextlib.suppress(CommandRefused):  # the leader ignores unreadable commands
                    last_command[model] = read_command(record.value).number
        await write(STATE_KEY, emptied_state(published, last_command) if published else None)


def _number() -> int:
    """A number that grows with each command."""
    return time.time_ns() // 1_000_000


def _published(options: argparse.Namespace, settings: Settings) -> list[dict[str, Any]]:
    connection = connection_of(options.source, settings)
    return _readable(asyncio.run(read_weights(connection, settings.written_prefix, "weights-log")))


def _readable(records: Sequence[OutputRecord]) -> list[dict[str, Any]]:
    """The weights records; warns of unreadable ones."""
    return readable("weights-log", (record.value for record in records), read_log_record)


def transform_findings(connection: Connection, settings: Settings) -> list[Finding]:
    """Differences between `feature_transforms` and the live weights."""
    transforms = transforms_of(settings)
    try:
        records = asyncio.run(read_weights(connection, settings.written_prefix, "weights-log"))
    except (SourceUnusable, SourceUnavailable):
        return []  # `inspect` reports it
    live = {each["model"]: each for each in _readable(records) if each["status"] in LIVE}
    known = sorted({name for each in live.values() for name in each["feature_names"]})
    found = []
    if live and (unknown := sorted(transforms.keys() - set(known))):
        what = f"feature_transforms names {_listed(unknown)}, and no model with weights has such a "
        what += f"feature: they have {_listed(known)}."
        found.append(
            Finding("warning", what, "Check the spelling: such a transform has no effect.")
        )
    for model, record in sorted(live.items()):
        declared = loaded(record.get("transforms") or {})
        wanted = of_features(transforms, record["feature_names"])
        others = [name for name in known if declared.get(name) != wanted.get(name)]
        if others:
            what = f"The live weights of {printable(repr(model))} have other transforms than "
            what += f"feature_transforms, of {_listed(others)}."
            found.append(Finding("warning", what, _OTHER_TRANSFORMS))
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return printable(", ".join(names[:_MOST_NAMES])) + more


def _model(options: argparse.Namespace, records: list[dict[str, Any]]) -> str:
    models = sorted({str(record["model"]) for record in records})
    if options.model is None and len(models) == 1:
        return models[0]
    if options.model is None or options.model not in models:
        raise UsageError(_unknown(options.model, models))
    return str(options.model)


def _unknown(model: str | None, models: list[str]) -> str:
    known = f"models with weights: {', '.join(map(repr, models))}"
    what = "Give --model" if model is None else f"There are no weights for {model!r}"
    return f"{what}; {known if models else 'no model has weights yet'}."


def _send(options: argparse.Namespace, settings: Settings, model: str, command: Command) -> None:
    connection = connection_of(options.source, settings)
    replaced = replaced_command(
        asyncio.run(read_weights(connection, settings.written_prefix, "weights")), model
    )
    if replaced is not None:
        action = replaced.action.replace("_", "-")
        warn(
            f"The {action} sent before ({printable(replaced.reason)}) has not been executed yet: "
            "this command replaces it."
        )
    key, value = command_key(model), command_record(command)
    asyncio.run(write_to_weights(connection, settings.written_prefix, key, value))
    print(f"Sent to the leader of {model!r}: it takes effect once, when the interval ends.")


def replaced_command(records: Sequence[OutputRecord], model: str) -> Command | None:
    """The last command of the model in `weights`, if the leader's state does not have it yet."""
    values = {record.key: record.value for record in records}
    try:
        command = read_command(values[command_key(model)])
        state = read_state(values[STATE_KEY]).state if values.get(STATE_KEY) else None
        models = state["models"] if state else []
    except (KeyError, CommandRefused, StateRefused):
        return None
    executed = {each["model"]: each["last_command"] for each in models}
    return command if command.number > executed.get(model, 0) else None

"""`weights`: what the leader has said, and what an operator asks of it."""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from evaluator.adapters.kafka import read_weights, write_to_weights
from evaluator.cli.wiring import KAFKA_SOURCE, UsageError, connection_of
from evaluator.config import Settings
from evaluator.core.online.events import LIVE, Command
from evaluator.tables import format_table, printable, utc_time
from evaluator.wire.weights.leader_state import (
    STATE_KEY,
    WordRefused,
    command_model_of,
    emptied_state,
    read_command,
    read_said,
    word_key,
    word_record,
)
from evaluator.wire.weights.weights_record import Weights, WeightsRefused

MOST_SHOWN = 20
_HEADER = ("model", "version", "epoch", "status", "of", "event time (UTC)", "evidence", "weights")


class _AddParser(Protocol):
    def __call__(
        self, name: str, command: Callable[[argparse.Namespace, Settings], int], help_text: str
    ) -> argparse.ArgumentParser: ...


def add_to(add: _AddParser) -> None:
    """The actions of the command."""
    parsers = {
        action.__name__: add(name, action, help_text)
        for name, action, help_text in (
            ("show", show, f"the last {MOST_SHOWN} records of each model's weights"),
            ("freeze", freeze, "learn nothing more for a model, until it is rolled back"),
            ("roll-back", roll_back, "make an older version live again, and learn on from it"),
            ("forget", forget, "drop the state of the leader; what is live stays live"),
        )
    }
    for name, parser in parsers.items():
        parser.add_argument("--source", required=True, metavar="SRC", help=KAFKA_SOURCE)
        if name != "forget":
            parser.add_argument("--model", metavar="NAME", help="of the rankings")
        if name in {"freeze", "roll_back"}:
            parser.add_argument(
                "--reason", required=True, help="kept with the command and in the log"
            )
    parsers["roll_back"].add_argument(
        "--to", type=int, required=True, metavar="VERSION", help="as `show` names it"
    )


def show(asked: argparse.Namespace, settings: Settings) -> int:
    """`weights show`: a table."""
    said = _said(asked, settings)
    models = sorted({record["model"] for record in said})
    if asked.model is not None and asked.model not in models:
        raise UsageError(_unknown(asked.model, models))
    rows = []
    for model in models if asked.model is None else [asked.model]:
        mine = [record for record in said if record["model"] == model]
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
        " ".join(f"{printable(name)}={value:.4g}" for name, value in weights),
    ]


def freeze(asked: argparse.Namespace, settings: Settings) -> int:
    """`weights freeze`."""
    model = _model(asked, _said(asked, settings))
    _say(asked, settings, model, Command(_number(), "freeze", asked.reason))
    return 0


def roll_back(asked: argparse.Namespace, settings: Settings) -> int:
    """`weights roll-back`."""
    said = _said(asked, settings)
    model = _model(asked, said)
    versions = {record["version"]: record for record in said if record["model"] == model}
    if asked.to not in versions:
        raise UsageError(
            f"There is no version {asked.to} of {model!r}; `evaluator weights show` lists them."
        )
    found = versions[asked.to]
    command = Command(
        _number(),
        "roll_back",
        asked.reason,
        tuple(found["weights"]),
        tuple(found["feature_names"]),
        Weights.model_validate(found).table(),
    )
    _say(asked, settings, model, command)
    return 0


def forget(asked: argparse.Namespace, settings: Settings) -> int:
    """`weights forget`."""
    connection, prefix = connection_of(asked.source, settings), settings.topic_prefix
    said, last_command = _said(asked, settings), dict[str, int]()
    for record in asyncio.run(read_weights(connection, prefix, "weights")):
        model = None if record.key is None else command_model_of(record.key)
        if model is not None:
            with contextlib.suppress(WordRefused):  # one that cannot be read is not followed
                last_command[model] = read_command(record.value).number
    state = emptied_state(said, last_command) if said else None
    asyncio.run(write_to_weights(connection, prefix, STATE_KEY, state))
    print("The state is dropped. Start the leaders again: they learn from the beginning.")
    return 0


def _number() -> int:
    """Grows with each command."""
    return time.time_ns() // 1_000_000


def _said(asked: argparse.Namespace, settings: Settings) -> list[dict[str, Any]]:
    connection = connection_of(asked.source, settings)
    records = asyncio.run(read_weights(connection, settings.topic_prefix, "weights-log"))
    said, n_unreadable = list[dict[str, Any]](), 0
    for record in records:
        try:
            said += [read_said(record.value)] if record.value else []
        except WeightsRefused:
            n_unreadable += 1
    if n_unreadable:
        print(f"{n_unreadable} records of weights-log cannot be read: ignored.", file=sys.stderr)
    return said


def _model(asked: argparse.Namespace, said: list[dict[str, Any]]) -> str:
    models = sorted({str(record["model"]) for record in said})
    if asked.model is None and len(models) == 1:
        return models[0]
    if asked.model is None or asked.model not in models:
        raise UsageError(_unknown(asked.model, models))
    return str(asked.model)


def _unknown(model: str | None, models: list[str]) -> str:
    known = f"models with weights: {', '.join(map(repr, models))}"
    asked = "Give --model" if model is None else f"There are no weights for {model!r}"
    return f"{asked}; {known if models else 'no model has weights yet'}."


def _say(asked: argparse.Namespace, settings: Settings, model: str, command: Command) -> None:
    connection = connection_of(asked.source, settings)
    key, value = word_key(model), word_record(command)
    asyncio.run(write_to_weights(connection, settings.topic_prefix, key, value))
    print(f"Sent to the leader of {model!r}: it takes effect once, when the interval ends.")

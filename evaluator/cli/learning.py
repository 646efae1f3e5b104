"""`fit`: linear weights from samples or logs, into a file."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evaluator.adapters.files import NewFile
from evaluator.cli.promotion import embedder_of, learner_of
from evaluator.cli.ranges import (
    add_range_to,
    default_end,
    meaning_of,
    moments_of,
    require_apart,
    source_of,
)
from evaluator.cli.wiring import KAFKA_SOURCE, UsageError
from evaluator.config import Settings
from evaluator.config.measures import parse_measures
from evaluator.replay.fit import Course, Epoch, Fitted
from evaluator.replay.fit import fit as run_fit
from evaluator.replay.groups import GroupLog, read_groups
from evaluator.wire.canonical import encode_document

MAX_EPOCHS: Final = 1_000_000
_ANY_MEASURE: Final = ("top1",)
"""The engine that joins measures something; nobody looks at it."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """The options of `evaluator fit`."""
    add_range_to(parser, kafka=KAFKA_SOURCE)
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="where the weights go, as JSON"
    )
    parser.add_argument("--force", action="store_true", help="replace a file that is not empty")
    parser.add_argument(
        "--epochs", type=int, default=10, metavar="N", help="passes over the groups (default 10)"
    )
    parser.add_argument(
        "--shuffle-seed",
        type=int,
        metavar="N",
        help="take the groups in another order in each epoch, the same for the same N; without "
        "it they stay in theirs",
    )
    parser.add_argument(
        "--model", default="", metavar="NAME", help="whose weights these are, in the record"
    )


def fit(asked: argparse.Namespace, settings: Settings) -> int:
    """`evaluator fit`."""
    if not 1 <= asked.epochs <= MAX_EPOCHS:
        raise UsageError(f"--epochs {asked.epochs} is not accepted. Give 1 to {MAX_EPOCHS}.")
    from_ms, to_ms = moments_of(asked)
    require_apart(asked, {f"--out {asked.out}": asked.out})
    embedder = embedder_of(settings)
    out = NewFile(asked.out, force=asked.force)
    source, live = source_of(asked, settings, features=True)
    meaning = meaning_of(settings, parse_measures(_ANY_MEASURE), at_end=default_end(live))
    log = asyncio.run(
        read_groups(
            source,
            meaning,
            embedder=embedder,
            max_grade=settings.map_graded_max_grade,
            from_ms=from_ms,
            to_ms=to_ms,
            max_poll_records=settings.max_poll_records,
        )
    )
    fitted = run_fit(log, _course(asked, settings))
    out.write(encode_document(fitted.record, indent=2) + b"\n")
    for warning in _warnings(log, fitted):
        print(f"evaluator: warning: {warning}.", file=sys.stderr)
    print(_summary(log, fitted, asked.out))
    return 0


def _course(asked: argparse.Namespace, settings: Settings) -> Course:
    return Course(
        learner=learner_of(settings),
        epochs=asked.epochs,
        batch_queries=settings.batch_queries,
        initial_weights=settings.initial_weights,
        shuffle_seed=asked.shuffle_seed,
        model=asked.model,
    )


def _warnings(log: GroupLog, fitted: Fitted) -> list[str]:
    """What was left out, or came to nothing."""
    found = []
    if log.n_dead_letters:
        found.append(
            f"{log.n_dead_letters:,} records are dead letters and were left out; `evaluator "
            "replay` says which and why"
        )
    if log.n_without:
        found.append(f"{log.n_without:,} of {len(log.queries):,} groups have no features")
    if not fitted.state.updates:
        found.append("no update was made, so the weights are the initial ones")
    return found


def _summary(log: GroupLog, fitted: Fitted, path: Path) -> str:
    last = fitted.history[-1]
    return (
        f"{len(log.queries):,} groups, {last.groups:,} of them to learn from; "
        f"{fitted.state.updates:,} updates in {last.epoch:,} epochs; "
        f"mean loss {_losses(fitted.history)}; weights in {path}"
    )


def _losses(history: Sequence[Epoch]) -> str:
    first, last = history[0].mean_loss, history[-1].mean_loss
    return "none" if first is None or last is None else f"{first:.6g} to {last:.6g}"

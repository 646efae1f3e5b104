"""`fit`: learns linear weights from samples or logs, into a file."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evaluator.adapters.files import NewFile
from evaluator.cli.exits import UsageError
from evaluator.cli.leader import embedder_of
from evaluator.cli.ranges import read_rules_of, replay_rules_of, require_apart, source_of
from evaluator.cli.wiring import from_settings, warn
from evaluator.config import Settings
from evaluator.config.measures import parse_measures
from evaluator.core.learning.learner import Learner
from evaluator.replay.fit import Epoch, FitPlan, Fitted
from evaluator.replay.fit import fit as run_fit
from evaluator.replay.groups import GroupLog, read_groups
from evaluator.wire.canonical import encode_document

MAX_EPOCHS: Final = 1_000_000
_ANY_MEASURE: Final = ("top1",)
"""The engine needs a measure; its values are not used."""


def fit(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator fit`."""
    if not 1 <= options.epochs <= MAX_EPOCHS:
        raise UsageError(f"--epochs {options.epochs} is not accepted. Give 1 to {MAX_EPOCHS}.")
    read = read_rules_of(options, settings, features=True)
    require_apart(options, settings, {f"--out {options.out}": options.out})
    embedder = embedder_of(settings)
    out = NewFile(options.out, force=options.force)
    source, live = source_of(options, settings, read)
    measures = parse_measures(_ANY_MEASURE)
    rules = replay_rules_of(options, settings, measures, read, live=live, learns=True)
    max_grade = settings.map_graded_max_grade
    log = asyncio.run(read_groups(source, rules, embedder=embedder, max_grade=max_grade))
    plan = from_settings(
        FitPlan,
        settings,
        learner=from_settings(Learner, settings),
        epochs=options.epochs,
        shuffle_seed=options.shuffle_seed,
        model=options.model,
    )
    fitted = run_fit(log, plan)
    out.write(encode_document(fitted.record, indent=2) + b"\n")
    for warning in _warnings(log, fitted):
        warn(f"{warning}.")
    print(_summary(log, fitted, options.out))
    return 0


def _warnings(log: GroupLog, fitted: Fitted) -> list[str]:
    """Warnings about ignored records and absent features or updates."""
    found = []
    if log.n_dead_letters:
        found.append(
            f"{log.n_dead_letters:,} records are dead letters and were ignored; `evaluator "
            "replay` lists them with reasons"
        )
    if log.n_without:
        found.append(f"{log.n_without:,} of {len(log.queries):,} groups have no features")
    if not fitted.state.updates:
        found.append("no update was made, so the weights are the initial weights")
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

"""`fit`: learns linear weights from samples or logs, into a file."""

import argparse
import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from evaluator.adapters.files import NewFile, SampleRange
from evaluator.cli.exits import FOUND, UsageError, fail
from evaluator.cli.leader import embedder_of, initial_weights_of, transforms_of
from evaluator.cli.ranges import read_rules_of, replay_rules_of, source_of
from evaluator.cli.wiring import from_settings, warn
from evaluator.comparison.paired import Paired, paired
from evaluator.config import Settings
from evaluator.config.measures import parse_measures
from evaluator.core.learning.learner import WARM_UP_GROUPS, Learner
from evaluator.core.online.offline_ranking import OfflineRanking
from evaluator.ports import RangeSource
from evaluator.replay.fit import Epoch, FitPlan, FitRefused, Fitted
from evaluator.replay.fit import fit as run_fit
from evaluator.replay.groups import GroupLog, read_groups
from evaluator.replay.validation import VALIDATED, Pairs
from evaluator.tables import format_table
from evaluator.wire.canonical import encode_document

MAX_EPOCHS: Final = 1_000_000
MAX_SHARE: Final = 0.9
ALTERNATIVE_LOSS: Final = "lambdarank"
"""The loss that is tried in addition to the default one."""
ALTERNATIVE_MIN_GAIN: Final = 0.01
"""Improvement on the validation that it needs."""
ALTERNATIVE_MAX_PAIRS: Final = 1 << 24
"""Pairs of candidates of a query, over all queries, up to which it is tried: seconds an epoch."""


def fit(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator fit`: exit 5 if the weights are worse than the served order."""
    if not 1 <= options.epochs <= MAX_EPOCHS:
        raise UsageError(f"--epochs {options.epochs} is not accepted. Give 1 to {MAX_EPOCHS}.")
    if options.validate is not None and not 0 <= options.validate <= MAX_SHARE:
        raise UsageError(f"--validate {options.validate} is not accepted. Give 0 to {MAX_SHARE}.")
    read = read_rules_of(options, settings, features=True)
    embedder = embedder_of(settings)
    out = NewFile(options.out, force=options.force)
    source = source_of(options, settings, read)
    measures = parse_measures((VALIDATED,))
    rules = replay_rules_of(options, settings, measures, read, learns=True)
    max_grade = settings.map_graded_max_grade
    log = _read(read_groups(source, rules, embedder=embedder, max_grade=max_grade))
    plan = from_settings(
        FitPlan,
        settings,
        learner=from_settings(Learner, settings),
        offline_ranking=from_settings(OfflineRanking, settings, measures=measures),
        epochs=options.epochs,
        initial_weights=initial_weights_of(settings, log.feature_names),
        shuffle_seed=options.shuffle_seed,
        validate=options.validate,
        transforms=transforms_of(settings),
        model=options.model,
    )
    fitted = run_fit(log, plan)
    default = Settings().loss, Settings().label_mode
    if not options.keep_loss and (settings.loss, settings.label_mode) == default:
        fitted = _with_better_loss(log, plan, fitted)
    out.write(encode_document(fitted.record, indent=2) + b"\n")
    for warning in _warnings(log, fitted):
        warn(f"{warning}.")
    print(_summary(log, fitted, options.out))
    return 0 if options.validate == 0 else _compared(fitted, source, options.out)


def _read(reading: Coroutine[Any, Any, GroupLog]) -> GroupLog:
    """The groups, which are not the result of `asyncio.run`.

    In Python 3.11 it formats its result as a text that is never shown: 18 % of the time of `fit`.
    """
    found: list[GroupLog] = []

    async def keep() -> None:
        found.append(await reading)

    asyncio.run(keep())
    return found[0]


def _with_better_loss(log: GroupLog, plan: FitPlan, fitted: Fitted) -> Fitted:
    """The weights of ALTERNATIVE_LOSS instead, if the validation shows that they are better."""
    n_pairs = sum(len(query.features) ** 2 for query in log.queries)
    if (before := fitted.validation) is None or n_pairs > ALTERNATIVE_MAX_PAIRS:
        return fitted
    try:
        learner = replace(plan.learner, loss=ALTERNATIVE_LOSS)
        alternative = run_fit(log, replace(plan, learner=learner))
    except FitRefused:  # its weights diverge
        return fitted
    after = alternative.validation
    if after is None or after.traces != before.traces:
        return fitted
    found = _paired(after._replace(served=before.weights))
    if found is None or (interval := found.interval) is None:
        return fitted
    if interval.low <= 0 or found.difference <= ALTERNATIVE_MIN_GAIN:
        return fitted
    print(
        f"loss = {ALTERNATIVE_LOSS}: better than {plan.learner.loss} by "
        f"{found.difference:.4f} on the validation ({interval.low:.4f} to {interval.high:.4f})"
    )
    return alternative


def _warnings(log: GroupLog, fitted: Fitted) -> list[str]:
    """Warnings about ignored records, absent features or updates, and a loss that rises."""
    found = []
    if log.n_dead_letters:
        found.append(
            f"{log.n_dead_letters:,} records are dead letters and were ignored; `evaluator "
            "replay` lists them with reasons"
        )
    if log.n_without:
        found.append(f"{log.n_without:,} of {len(log.queries):,} groups have no features")
    if not fitted.state.updates:
        needed = ""
        if fitted.state.scale is None:
            needed = f": the first one needs {WARM_UP_GROUPS} groups to learn from"
        found.append(f"no update was made, so the weights are the initial weights{needed}")
    losses = [epoch.mean_loss for epoch in fitted.history if epoch.mean_loss is not None]
    if losses and losses[-1] > losses[0]:
        found.append(
            f"the mean loss rose from {losses[0]:.6g} to {losses[-1]:.6g}. Set a smaller "
            "learning_rate, schedule=inv_sqrt, larger batch_queries, or scale=within_query"
        )
    return found


def _summary(log: GroupLog, fitted: Fitted, path: Path) -> str:
    last = fitted.history[-1]
    validation = fitted.record.get("validation")
    apart = f", {validation['groups']:,} for validation" if validation else ""
    best = f", the best is {validation['best_epoch']}" if validation else ""
    return (
        f"{len(log.queries):,} groups, {last.groups:,} of them to learn from{apart}; "
        f"{fitted.state.updates:,} updates in {last.epoch:,} epochs{best}; "
        f"mean loss {_losses(fitted.history)}; weights in {path}"
    )


def _losses(history: Sequence[Epoch]) -> str:
    first, last = history[0].mean_loss, history[-1].mean_loss
    return "none" if first is None or last is None else f"{first:.6g} to {last:.6g}"


# --- compared with the served order ---


def _compared(fitted: Fitted, source: RangeSource, path: Path) -> int:
    """Prints the values of the weights and of the served order; FOUND if the weights are worse."""
    parts = {"validation": fitted.validation, "learned from": fitted.training}
    found = {name: _paired(pairs) for name, pairs in parts.items() if pairs is not None}
    rows = [_row(name, each) for name, each in found.items() if each is not None]
    if not rows:
        return 0
    header = ["groups", "queries", f"served {VALIDATED}", "weights", "difference", "95 % interval"]
    print(format_table(header, rows, numbers=(1, 2, 3, 4)))
    by_rows = isinstance(source, SampleRange) and not source.has_scores
    order = "the order of the rows, because the samples have no scores" if by_rows else "by score"
    print(f"served: {order}")
    decisive = found.get("validation") or found["learned from"]
    interval = decisive.interval if decisive else None
    if interval is None:
        warn("too few queries for an interval: there is no evidence that the weights are better.")
    elif interval.high < 0:
        worse = f"the weights in {path} are worse than the served order ({order})"
        where = "" if fitted.validation else ", even on the groups that they were learned from"
        return fail(f"{worse}{where}. Do not use them.", FOUND)
    elif interval.low <= 0:
        warn("the interval contains 0: there is no evidence that the weights are better.")
    return 0


def _paired(pairs: Pairs) -> Paired | None:
    """The difference of the weights from the served order; None without queries."""
    if not pairs.traces:
        return None
    return paired(pairs.served, pairs.weights, np.array(pairs.traces), resamples=2_000)


def _row(name: str, found: Paired) -> list[str]:
    interval = found.interval
    shown = "none" if interval is None else f"{interval.low:+.4f} to {interval.high:+.4f}"
    means = f"{found.baseline_mean:.4f}", f"{found.other_mean:.4f}", f"{found.difference:+.4f}"
    return [name, f"{found.pairs:,}", *means, shown]

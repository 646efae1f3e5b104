"""Offline learning: epochs over groups with the update rule of the online learner."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from math import fsum, inf, isfinite
from typing import Any, Final

from tqdm import tqdm

from evaluator.core.learning.groups import Batch, Group
from evaluator.core.learning.learner import Learner, LearnerState
from evaluator.core.online.training import example_of
from evaluator.ports import RequestRefused
from evaluator.replay.groups import GroupLog
from evaluator.wire.weights.weights_record import WEIGHTS_FORMAT, with_checksum

MOST_CELLS: Final = 1 << 22
"""Padded features that are cached between epochs; more are padded in every epoch."""

_LOSS_NOT_FINITE: Final = "the sum of the losses is not a finite number"


class FitRefused(RequestRefused):
    """The settings do not fit the groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """The settings of a fit. *shuffle_seed* None: groups are not shuffled."""

    learner: Learner
    epochs: int
    batch_queries: int
    initial_weights: tuple[float, ...] = ()
    shuffle_seed: int | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the groups: the mean loss of those with a loss, None without any."""

    epoch: int
    mean_loss: float | None
    groups: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """The final state, the epochs, and the record of the weights."""

    state: LearnerState
    history: list[Epoch]
    record: dict[str, Any]


def fit(log: GroupLog, plan: FitPlan, *, show_progress: bool | None = None) -> Fitted:
    """Learns from the groups of a log.

    Raises:
        FitRefused: if the plan does not fit the groups, or the weights diverge.
    """
    groups = _examples(log, plan.learner)
    state = plan.learner.start(_initial_weights(log, plan))
    history: list[Epoch] = []
    shown = sys.stderr.isatty() if show_progress is None else show_progress
    total = plan.epochs * len(groups)
    with tqdm(total=total, desc="fit", unit=" groups", file=sys.stderr, disable=not shown) as bar:
        kept: list[list[Batch]] = []
        for number in range(1, plan.epochs + 1):
            losses: list[float] = []
            for batches in kept or _batches(groups, plan, number, keep=kept):
                state, some = plan.learner.learn(state, batches)
                if state.frozen:
                    raise FitRefused(_diverged(number, state))
                losses += some
                bar.update(sum(batch.n_groups for batch in batches))
            mean = _mean(losses)
            if mean is not None and not isfinite(mean):
                raise FitRefused(_diverged(number, replace(state, frozen=_LOSS_NOT_FINITE)))
            history.append(Epoch(number, mean, len(losses), len(groups) - len(losses)))
            bar.set_postfix(loss=mean)
    return Fitted(state, history, _record(log, plan, state, history))


def _mean(losses: Sequence[float]) -> float | None:
    """The mean of losses, None without any; infinite if their sum overflows."""
    try:
        return fsum(losses) / len(losses) if losses else None
    except OverflowError:
        return inf


def _diverged(epoch: int, state: LearnerState) -> str:
    return (
        f"in epoch {epoch}, after {state.updates} updates, {state.frozen}. Set a smaller "
        "learning_rate, a clip_norm, or scale=within_query; or check for extremely large features "
        "or propensities."
    )


def _examples(log: GroupLog, learner: Learner) -> list[Group]:
    """The training examples of a log. Raises FitRefused."""
    has_propensities = any(
        query.feature_names is not None and query.propensities is not None for query in log.queries
    )
    if has_propensities and (learner.loss, learner.label_mode) != ("softmax", "sum"):
        raise FitRefused(
            f"the groups have propensities, and with loss = {learner.loss} and label_mode = "
            f"{learner.label_mode} dividing grades by propensities is biased. Set "
            "loss=softmax and label_mode=sum, or leave the propensities out."
        )
    names, label_mode = log.feature_names, learner.label_mode
    return [example_of(query, names, label_mode=label_mode) for query in log.queries]


def _initial_weights(log: GroupLog, plan: FitPlan) -> tuple[float, ...]:
    n_features = len(log.feature_names)
    if plan.initial_weights and len(plan.initial_weights) != n_features:
        raise FitRefused(
            f"initial_weights has {len(plan.initial_weights)} numbers for {n_features} "
            f"features ({', '.join(log.feature_names)}). Set one for each feature, or none."
        )
    return plan.initial_weights or (0.0,) * n_features


def _batches(
    groups: Sequence[Group], plan: FitPlan, epoch: int, *, keep: list[list[Batch]]
) -> Iterator[list[Batch]]:
    """Batches of one epoch; if they are few and not shuffled, they are added to *keep*."""
    order = _order(len(groups), plan.shuffle_seed, epoch)
    made: list[list[Batch]] = []
    n_cells = 0
    ordered = [groups[place] for place in order]
    for batches in plan.learner.batches(ordered, plan.batch_queries):
        yield batches
        n_cells += sum(batch.features.size for batch in batches)
        if n_cells <= MOST_CELLS:
            made.append(batches)
    if plan.shuffle_seed is None and n_cells <= MOST_CELLS:
        keep += made


def _order(n: int, seed: int | None, epoch: int) -> list[int]:
    """The order of groups in an epoch: by hashes, which do not depend on the version of Python."""
    if seed is None:
        return list(range(n))
    return sorted(range(n), key=lambda place: blake2b(f"{seed} {epoch} {place}".encode()).digest())


def _record(
    log: GroupLog, plan: FitPlan, state: LearnerState, history: Sequence[Epoch]
) -> dict[str, Any]:
    learner = plan.learner
    has_scale = learner.scale != "none" and state.scale is not None
    of_features: dict[str, Any] = {}
    if log.embedder is not None:
        of_features = {"embedder": log.embedder, "map_graded_max_grade": log.max_grade}
    return with_checksum(
        {
            "format": WEIGHTS_FORMAT,
            "model": plan.model,
            "epoch": 0,
            "version": 1,
            "parent": None,
            "weights": list(learner.snapshot(state)),
            "feature_names": list(log.feature_names),
            "scale": list(state.scale or ()) if has_scale else None,
            "updates": state.updates,
            "settings": {
                **asdict(learner),
                "batch_queries": plan.batch_queries,
                "initial_weights": list(plan.initial_weights),
                "epochs": plan.epochs,
                "shuffle_seed": plan.shuffle_seed,
                **of_features,
            },
            "ranges": {name: {"start": a, "end": b} for name, (a, b) in log.ranges.items()},
            "history": [asdict(epoch) for epoch in history],
            **({} if log.history is None else {"success_rates": log.history.state()}),
        }
    )

"""Offline learning with the online learner: epochs over groups, in their order."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from math import fsum, inf, isfinite
from typing import Any, Final

from tqdm import tqdm

from evaluator.core.learning.groups import Batch, Group
from evaluator.core.learning.learner import Learner, LearnerState
from evaluator.core.online.examples import example_of
from evaluator.replay.groups import GroupLog
from evaluator.wire.weights.weights_record import WEIGHTS_FORMAT, with_checksum

MOST_CELLS: Final = 1 << 22
"""Features of padded groups that are kept from epoch to epoch; others are padded again."""

_LOSSES_RUN_AWAY: Final = "the sum of the losses is not a finite number"


class FitRefused(Exception):
    """What was asked for cannot be learned so (a usage error); the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How is learned. *shuffle_seed* None: groups stay in their order."""

    learner: Learner
    epochs: int
    batch_queries: int
    initial_weights: tuple[float, ...] = ()
    shuffle_seed: int | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the groups: the mean loss of those that counted, None if none did."""

    epoch: int
    mean_loss: float | None
    groups: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was learned: the state at the end, the history, and the record of the weights."""

    state: LearnerState
    history: list[Epoch]
    record: dict[str, Any]


def fit(log: GroupLog, course: Course, *, show_progress: bool | None = None) -> Fitted:
    """Learns from the groups of a log, and makes a record of it.

    Raises:
        FitRefused: if the course does not fit the groups, or weights run away.
    """
    groups = _examples(log, course.learner)
    state = course.learner.start(_initial_weights(log, course))
    history: list[Epoch] = []
    shown = sys.stderr.isatty() if show_progress is None else show_progress
    total = course.epochs * len(groups)
    with tqdm(total=total, desc="fit", unit=" groups", file=sys.stderr, disable=not shown) as bar:
        kept: list[list[Batch]] = []
        for number in range(1, course.epochs + 1):
            losses: list[float] = []
            for batches in kept or _batches(groups, course, number, keep=kept):
                state, some = course.learner.learn(state, batches)
                if state.frozen:
                    raise FitRefused(_diverged(number, state))
                losses += some
                bar.update(sum(batch.n_groups for batch in batches))
            mean = _mean(losses)
            if mean is not None and not isfinite(mean):
                raise FitRefused(_diverged(number, replace(state, frozen=_LOSSES_RUN_AWAY)))
            history.append(Epoch(number, mean, len(losses), len(groups) - len(losses)))
            bar.set_postfix(loss=mean)
    return Fitted(state, history, _record(log, course, state, history))


def _mean(losses: Sequence[float]) -> float | None:
    """Of these losses, None without any; infinite if their sum is beyond all floats."""
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
            f"{learner.label_mode} a grade divided by its propensity keeps no expectation. Set "
            "loss=softmax and label_mode=sum, or leave the propensities out."
        )
    names, label_mode = log.feature_names, learner.label_mode
    return [example_of(query, names, label_mode=label_mode) for query in log.queries]


def _initial_weights(log: GroupLog, course: Course) -> tuple[float, ...]:
    n_features = len(log.feature_names)
    if course.initial_weights and len(course.initial_weights) != n_features:
        raise FitRefused(
            f"initial_weights has {len(course.initial_weights)} numbers and there are {n_features} "
            f"features ({', '.join(log.feature_names)}). Give one for each, or none."
        )
    return course.initial_weights or (0.0,) * n_features


def _batches(
    groups: Sequence[Group], course: Course, epoch: int, *, keep: list[list[Batch]]
) -> Iterator[list[Batch]]:
    """Batches of one epoch, some at a time; if they stay the same and are few they go to *keep*."""
    order = _order(len(groups), course.shuffle_seed, epoch)
    made: list[list[Batch]] = []
    n_cells = 0
    ordered = [groups[place] for place in order]
    for batches in course.learner.batches(ordered, course.batch_queries):
        yield batches
        n_cells += sum(batch.features.size for batch in batches)
        if n_cells <= MOST_CELLS:
            made.append(batches)
    if course.shuffle_seed is None and n_cells <= MOST_CELLS:
        keep += made


def _order(n: int, seed: int | None, epoch: int) -> list[int]:
    """Places in the order of an epoch; by hashes, which stay the same in every version."""
    if seed is None:
        return list(range(n))
    return sorted(range(n), key=lambda place: blake2b(f"{seed} {epoch} {place}".encode()).digest())


def _scale(learner: Learner, state: LearnerState) -> list[float] | None:
    return None if learner.scale == "none" or state.scale is None else list(state.scale)


def _making(log: GroupLog) -> dict[str, Any]:
    """What features were made by, if they were."""
    if log.embedder is None:
        return {}
    return {"embedder": log.embedder, "map_graded_max_grade": log.max_grade}


def _record(
    log: GroupLog, course: Course, state: LearnerState, history: Sequence[Epoch]
) -> dict[str, Any]:
    made = {} if log.history is None else {"success_rates": log.history.state()}
    return with_checksum(
        {
            "format": WEIGHTS_FORMAT,
            "model": course.model,
            "epoch": 0,
            "version": 1,
            "parent": None,
            "weights": list(course.learner.snapshot(state)),
            "feature_names": list(log.feature_names),
            "scale": _scale(course.learner, state),
            "updates": state.updates,
            "settings": {
                **asdict(course.learner),
                "batch_queries": course.batch_queries,
                "initial_weights": list(course.initial_weights),
                "epochs": course.epochs,
                "shuffle_seed": course.shuffle_seed,
                **_making(log),
            },
            "ranges": {name: {"start": a, "end": b} for name, (a, b) in log.ranges.items()},
            "history": [asdict(epoch) for epoch in history],
            **made,
        }
    )

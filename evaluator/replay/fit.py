"""Offline learning: epochs over groups with the update rule of the online learner."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import compress
from math import fsum, inf, isfinite
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import asdict, replace
from tqdm import tqdm

from evaluator.core.learning.groups import Group, UpdateBatch
from evaluator.core.learning.learner import Learner, LearnerState
from evaluator.core.learning.transforms import Transforms, documents
from evaluator.core.online.offline_ranking import OfflineRanking
from evaluator.core.online.training import example_of
from evaluator.ports import RequestRefused
from evaluator.replay.groups import GroupLog
from evaluator.replay.validation import (
    DEFAULT_SHARE,
    PATIENCE,
    VALIDATED,
    VALIDATED_FROM,
    Pairs,
    Part,
    validation_mask,
)
from evaluator.wire.weights.weights_record import WEIGHTS_FORMAT, with_checksum

MOST_CELLS: Final = 1 << 22
"""Padded features that are cached between epochs; more are padded in every epoch."""

_LOSS_NOT_FINITE: Final = "the sum of the losses is not a finite number"


class FitRefused(RequestRefused):
    """The settings do not fit the groups."""


class FitPlan(Struct, frozen=True, kw_only=True):
    """The settings of a fit.

    *shuffle_seed* None: groups are not shuffled. *validate* is the share of the groups for
    validation; None: DEFAULT_SHARE of VALIDATED_FROM groups or more. *offline_ranking* measures
    VALIDATED, as its first measure.
    """

    learner: Learner
    epochs: int
    batch_queries: int
    offline_ranking: OfflineRanking
    initial_weights: tuple[float, ...] = ()
    shuffle_seed: int | None = None
    validate: float | None = None
    model: str = ""
    transforms: Transforms = field(default_factory=dict)


class Epoch(Struct, frozen=True):
    """One pass over the groups: the mean loss of those with a loss, None without any.

    `validation` has the loss of the groups of the validation and the values of both parts after
    the epoch, by name; empty without such groups.
    """

    epoch: int
    mean_loss: float | None
    groups: int
    skipped: int
    validation: Mapping[str, float | None] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """The epoch in the record."""
        document = asdict(self)
        values: dict[str, Any] = document.pop("validation")
        return {**document, **values}


class Fitted(Struct, frozen=True):
    """The final state, the epochs, and the record of the weights.

    `training` and `validation` are the values of the served order and of the weights on the groups
    that were learned from and on those of the validation, None without any.
    """

    state: LearnerState
    history: list[Epoch]
    record: dict[str, Any]
    training: Pairs
    validation: Pairs | None


def fit(log: GroupLog, plan: FitPlan) -> Fitted:
    """Learns from the groups of a log; with a validation, up to the best epoch.

    Raises:
        FitRefused: if the plan does not fit the groups, or the weights diverge.
    """
    examples = _examples(log, plan)
    state = plan.learner.start(_initial_weights(log, plan))
    mask = _validation_mask(log, plan)
    groups, training = _selected(log, plan, examples, [not out for out in mask])
    validation = _Validation(plan, *_selected(log, plan, examples, mask)) if any(mask) else None
    history: list[Epoch] = []
    total = plan.epochs * len(groups)
    title = f"fit, {plan.learner.loss}"
    with tqdm(total=total, desc=title, unit=" groups", disable=None) as bar:
        kept: list[list[UpdateBatch]] = []
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
            values = {} if validation is None else validation.after(number, state, training)
            history.append(Epoch(number, mean, len(losses), len(groups) - len(losses), values))
            bar.set_postfix({"loss": mean, **values})
            if validation is not None and number - validation.best_epoch >= PATIENCE:
                break
    if validation is not None:
        state = validation.best_state
    weights = plan.learner.snapshot(state)
    return Fitted(
        state,
        history,
        _record(log, plan, state, history, validation),
        training.pairs(weights),
        None if validation is None else validation.part.pairs(weights),
    )


def _validation_mask(log: GroupLog, plan: FitPlan) -> list[bool]:
    """Whether each query is for validation. Raises FitRefused if either part is empty."""
    share = plan.validate
    if share is None:
        share = DEFAULT_SHARE if len(log.queries) >= VALIDATED_FROM else 0.0
    mask = validation_mask(log.queries, share, plan.shuffle_seed or 0)
    if plan.validate and (all(mask) or not any(mask)):
        raise FitRefused(
            f"a share of {share:g} of {len(log.queries)} groups, whole traces, leaves "
            f"{'none' if all(mask) else 'all'} of them to learn from. Set another --validate, or 0."
        )
    return [False] * len(mask) if all(mask) else mask


def _selected(
    log: GroupLog, plan: FitPlan, examples: Sequence[Group], mask: Sequence[bool]
) -> tuple[list[Group], Part]:
    """The training examples and the queries of a mask."""
    queries = list(compress(log.queries, mask))
    return list(compress(examples, mask)), Part.of(queries, plan.offline_ranking, plan.transforms)


class _Validation:
    """The groups of the validation, and the best epoch on them."""

    def __init__(self, plan: FitPlan, groups: list[Group], part: Part) -> None:
        self._plan, self.groups, self.part = plan, groups, part
        self.best_epoch = 0
        self.best_state: LearnerState
        self._best: tuple[float, float] = (-inf, -inf)

    def after(self, epoch: int, state: LearnerState, training: Part) -> dict[str, float | None]:
        """The values after an epoch, which may be the best one."""
        learner = self._plan.learner
        batches = learner.batches(self.groups, self._plan.batch_queries)
        loss = _mean([loss for some in batches for loss in learner.losses(state, some)])
        weights = learner.snapshot(state)
        value = self.part.mean(weights)
        found = (-inf if value is None else value, -inf if loss is None else -loss)
        if not self.best_epoch or found > self._best:
            self.best_epoch, self.best_state, self._best = epoch, state, found
        return {
            "validation_loss": loss if loss is None or isfinite(loss) else None,
            VALIDATED: training.mean(weights),
            f"validation_{VALIDATED}": value,
        }


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
        "or propensities (feature_transforms can clip features)."
    )


def _examples(log: GroupLog, plan: FitPlan) -> list[Group]:
    """The training examples of a log. Raises FitRefused."""
    learner, transforms = plan.learner, plan.transforms
    if unknown := sorted(transforms.keys() - set(log.feature_names)):
        raise FitRefused(
            f"feature_transforms names {unknown[0]!r}, and the groups have the features "
            f"{', '.join(log.feature_names)}. Use these names."
        )
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
    return [
        example_of(query, names, label_mode=label_mode, transforms=transforms)
        for query in log.queries
    ]


def _initial_weights(log: GroupLog, plan: FitPlan) -> tuple[float, ...]:
    n_features = len(log.feature_names)
    if plan.initial_weights and len(plan.initial_weights) != n_features:
        raise FitRefused(
            f"initial_weights has {len(plan.initial_weights)} numbers for {n_features} "
            f"features ({', '.join(log.feature_names)}). Set one for each feature, or none."
        )
    return plan.initial_weights or (0.0,) * n_features


def _batches(
    groups: Sequence[Group], plan: FitPlan, epoch: int, *, keep: list[list[UpdateBatch]]
) -> Iterator[list[UpdateBatch]]:
    """Batches of one epoch; if they are few and not shuffled, they are added to *keep*."""
    order = _order(len(groups), plan.shuffle_seed, epoch)
    made: list[list[UpdateBatch]] = []
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
    log: GroupLog,
    plan: FitPlan,
    state: LearnerState,
    history: Sequence[Epoch],
    validation: _Validation | None,
) -> dict[str, Any]:
    learner = plan.learner
    transforms = documents(plan.transforms)
    has_scale = learner.scale != "none" and state.scale is not None
    of_features: dict[str, Any] = {}
    if log.embedder is not None:
        of_features = {"embedder": log.embedder, "map_graded_max_grade": log.max_grade}
    of_validation: dict[str, Any] = {}
    if validation is not None:
        seed, groups = plan.shuffle_seed or 0, len(validation.groups)
        of_validation = {"groups": groups, "seed": seed, "best_epoch": validation.best_epoch}
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
            "history": [epoch.as_document() for epoch in history],
            **({"validation": of_validation} if of_validation else {}),
            **({} if log.history is None else {"success_rates": log.history.state()}),
            **({"transforms": transforms} if transforms else {}),
        }
    )

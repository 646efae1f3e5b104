"""Series of the leader; most of them exist only in the process that leads."""

from collections.abc import Callable, Iterable
from typing import Any, Final, get_args

from evaluator.core.event_time.clock import seconds_of
from evaluator.core.online.events import (
    CHALLENGER,
    CHAMPION,
    MOST_MODELS,
    LeaderView,
    ModelView,
    Status,
)
from evaluator.exposition.label_limits import OTHER
from evaluator.exposition.series import clean

MOST_FEATURES: Final = 64
"""Number of features of a model with series: the first ones by position."""

Samples = Iterable[tuple[Any, ...]]
"""Labels, in the order of the spec, and a value; of a histogram its buckets and its sum."""


def leader_series(view: LeaderView) -> dict[str, Samples]:
    """Samples of every series of the leader but the values of its weights, by name in SPECS."""
    counts, models = view.counts, {clean(model.model): model for model in view.models}
    versions = {
        (name, ranker): version
        for name, model in models.items()
        for ranker, version in ((CHAMPION, model.champion), (CHALLENGER, model.challenger))
        if version is not None
    }
    weights = {
        (*path, clean(feature)): weight
        for path, version in versions.items()
        for feature, weight in [*zip(version.feature_names, version.weights, strict=True)][
            :MOST_FEATURES
        ]
    }

    def by_model(figure: Callable[[ModelView], float | None]) -> Samples:
        figures = ((name, figure(model)) for name, model in models.items())
        return [((name,), value) for name, value in figures if value is not None]

    def of_leader(value: int) -> Samples:
        return [((), value)] if view.is_leader else []

    return {
        "leader_active": [((), int(view.is_leader))],
        "leader_epochs": [((), counts.get(("leader_epochs",), 0))],
        "leader_gaps": [((), counts.get(("gaps",), 0))],
        "leader_records": [(key[1:], n) for key, n in counts.items() if key[0] == "records"],
        "leader_awaited": [
            ((str(task),), int(task in view.awaited))
            for task in range(view.n_tasks if view.is_leader else 0)
        ],
        "leader_buffered_queries": of_leader(view.n_waiting),
        "leader_ignored_queries": of_leader(view.n_ignored),
        "leader_interval_timestamp_seconds": (
            [] if view.now_ms is None else [((), seconds_of(view.now_ms))]
        ),
        "weights_releases": _releases(view),
        "weights_epoch": by_model(lambda model: model.epoch),
        "weights_last_version": by_model(lambda model: model.version),
        "weights_version": [(path, version.number) for path, version in versions.items()],
        "weights_value": weights.items(),
        "learning_updates": by_model(lambda model: model.updates),
        "learning_loss": by_model(lambda model: model.loss),
        "learning_frozen": by_model(lambda model: int(bool(model.frozen))),
        "experiment_evidence": [
            ((name, side), evidence)
            for name, model in models.items()
            for side, evidence in (("for", model.evidence_for), ("against", model.evidence_against))
        ],
        "experiment_evidence_needed": by_model(lambda model: model.evidence_needed),
        "experiment_traces": by_model(lambda model: model.n_traces),
    }


def _releases(view: LeaderView) -> Samples:
    """Releases by model, for the first models of this process; all others in one series."""
    releases = [
        (clean(key[1]), key[2], n) for key, n in view.counts.items() if key[0] == "releases"
    ]
    models = [*(name for name, _, _ in releases), *(model.model for model in view.models)]
    shown = {clean(name) for name in list(dict.fromkeys(models))[:MOST_MODELS]}
    counts = {(name, status): 0 for name in shown for status in get_args(Status)}
    for name, status, n in releases:
        path = (name if name in shown else OTHER, status)
        counts[path] = counts.get(path, 0) + n
    return counts.items()

"""The leader's series: there while learning is on, and for the most part where it leads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

from prometheus_client.metrics_core import Metric

from evaluator.adapters.prometheus.made import Samples, family
from evaluator.core.event_time.clock import seconds_of
from evaluator.core.online.events import CHALLENGER, CHAMPION, ModelView, Status, Version
from evaluator.core.online.online_learner import MOST_MODELS, LeaderView
from evaluator.exposition.label_limits import OTHER
from evaluator.exposition.series import (
    AWAITED,
    BUFFERED,
    EPOCH,
    EVIDENCE,
    EVIDENCE_NEEDED,
    FROZEN,
    GAPS,
    IGNORED,
    INTERVAL,
    LAST_VERSION,
    LEADER_ACTIVE,
    LEADER_EPOCHS,
    LOSS,
    RECORDS,
    RELEASES,
    TRACES,
    UPDATES,
    VERSION,
    WEIGHT,
    clean,
)

MOST_FEATURES: Final = 64
"""Features of a model that are shown: those that are named first."""

Ranked = tuple[str, str, str]  # model, ranker, measure


@dataclass(slots=True)
class Published:
    """Champion's and challenger's sums, of the intervals that this process has published itself.

    So they add up over processes, whichever process leads, and they never fall.
    """

    _earlier: dict[Ranked, tuple[int, int]] = field(default_factory=dict)
    _leader_epoch: tuple[int, int] = (0, 0)
    _now: dict[Ranked, tuple[int, int]] = field(default_factory=dict)

    def sums(self, view: LeaderView) -> Mapping[Ranked, tuple[int, int]]:
        """Queries, and their values in units of 2^-40, by (model, ranker, measure)."""
        counts = view.counts
        leader_epoch = counts.get(("leader_epochs",), 0), counts.get(("gaps",), 0)
        if leader_epoch != self._leader_epoch:
            self._earlier, self._now, self._leader_epoch = self._together(), {}, leader_epoch
        for model_view in view.models:
            for ranker, sums in model_view.sums.items():
                before = model_view.sums_before.get(ranker, {})
                for measure, (queries, units) in sums.items():
                    earlier = before.get(measure, (0, 0))
                    grown = queries - earlier[0], units - earlier[1]
                    self._now[model_view.model, ranker, measure] = grown
        return self._together()

    def _together(self) -> dict[Ranked, tuple[int, int]]:
        both = dict(self._earlier)
        for path, (queries, units) in self._now.items():
            earlier = both.get(path, (0, 0))
            both[path] = earlier[0] + queries, earlier[1] + units
        return both


def leader_families(view: LeaderView) -> Iterator[Metric]:
    """Every family of the leader but the quality of what it ranks, in the order of SPECS."""
    counts = view.counts
    models = {clean(model_view.model): model_view for model_view in view.models}
    yield family(LEADER_ACTIVE, [((), int(view.is_leader))])
    yield family(LEADER_EPOCHS, [((), counts.get(("leader_epochs",), 0))])
    yield family(GAPS, [((), counts.get(("gaps",), 0))])
    yield family(RECORDS, ((key[1:], n) for key, n in counts.items() if key[0] == "records"))
    yield family(AWAITED, _awaited(view))
    here: list[tuple[str, ...]] = [()] if view.is_leader else []
    yield family(BUFFERED, ((none, view.n_waiting) for none in here))
    yield family(IGNORED, ((none, view.n_ignored) for none in here))
    yield family(INTERVAL, [] if view.now_ms is None else [((), seconds_of(view.now_ms))])
    yield family(RELEASES, _releases(view))
    yield family(EPOCH, (((name,), model_view.epoch) for name, model_view in models.items()))
    yield family(
        LAST_VERSION, (((name,), model_view.version) for name, model_view in models.items())
    )
    yield family(VERSION, ((path, version.number) for path, version in _versions(models)))
    yield family(WEIGHT, _weights(models))
    yield family(UPDATES, (((name,), model_view.updates) for name, model_view in models.items()))
    losses = ((name, model_view.loss) for name, model_view in models.items())
    yield family(LOSS, (((name,), loss) for name, loss in losses if loss is not None))
    yield family(FROZEN, (((name,), int(bool(p.frozen))) for name, p in models.items()))
    yield family(EVIDENCE, _evidence(models))
    needed = (((name,), model_view.evidence_needed) for name, model_view in models.items())
    yield family(EVIDENCE_NEEDED, needed)
    yield family(TRACES, (((name,), model_view.n_traces) for name, model_view in models.items()))


def _awaited(view: LeaderView) -> Samples:
    if view.is_leader:
        for task in range(view.n_tasks):
            yield (str(task),), int(task in view.awaited)


def _releases(view: LeaderView) -> Samples:
    """Of the first models that this process knew; those beyond are one."""
    counts: dict[tuple[str, str], int] = {}
    told = [(clean(key[1]), key[2], n) for key, n in view.counts.items() if key[0] == "releases"]
    known = list(dict.fromkeys([*(name for name, _, _ in told), *(p.model for p in view.models)]))
    shown = {clean(name) for name in known[:MOST_MODELS]}
    for name in shown:
        counts |= {(name, status): 0 for status in get_args(Status)}
    for name, status, n in told:
        path = (name if name in shown else OTHER, status)
        counts[path] = counts.get(path, 0) + n
    return counts.items()


def _versions(models: Mapping[str, ModelView]) -> Iterator[tuple[tuple[str, str], Version]]:
    for name, model_view in models.items():
        for ranker, version in (
            (CHAMPION, model_view.champion),
            (CHALLENGER, model_view.challenger),
        ):
            if version is not None:
                yield (name, ranker), version


def _weights(models: Mapping[str, ModelView]) -> Samples:
    shown: dict[tuple[str, ...], float] = {}
    for path, version in _versions(models):
        pairs = list(zip(version.feature_names, version.weights, strict=True))[:MOST_FEATURES]
        shown |= {(*path, clean(feature)): weight for feature, weight in pairs}
    return shown.items()


def _evidence(models: Mapping[str, ModelView]) -> Samples:
    for name, model_view in models.items():
        yield (name, "for"), model_view.evidence_for
        yield (name, "against"), model_view.evidence_against

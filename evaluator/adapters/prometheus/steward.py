"""The steward's series: there while learning is on, and for the most part where it is in office."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, get_args

from prometheus_client.metrics_core import Metric

from evaluator.adapters.prometheus.made import Samples, family
from evaluator.core.durations import seconds_of
from evaluator.core.releases import CANDIDATE, CHAMPION, PupilView, Status, Version
from evaluator.core.steward import MOST_MODELS, StewardView
from evaluator.wire.metrics import (
    AWAITED,
    EPOCH,
    EVIDENCE,
    EVIDENCE_NEEDED,
    FROZEN,
    GAPS,
    IN_OFFICE,
    LAST_VERSION,
    LEFT_ALONE,
    LOSS,
    RECORDS,
    RELEASES,
    TERMS,
    TRACES,
    TURN,
    UNTAKEN,
    UPDATES,
    VERSION,
    WEIGHT,
    clean,
)
from evaluator.wire.slots import OTHER

MOST_FEATURES: Final = 64
"""Features of a model that are shown: those that are named first."""

Ranked = tuple[str, str, str]  # model, ranker, measure


@dataclass(slots=True)
class Published:
    """Champion's and candidate's sums, of the turns that this process has published itself.

    So they add up over processes, whoever is in office when, and they never fall.
    """

    _earlier: dict[Ranked, tuple[int, int]] = field(default_factory=dict)
    _term: tuple[int, int] = (0, 0)
    _now: dict[Ranked, tuple[int, int]] = field(default_factory=dict)

    def sums(self, view: StewardView) -> Mapping[Ranked, tuple[int, int]]:
        """Queries, and their values in units of 2^-40, by (model, ranker, measure)."""
        counts = view.counts
        term = counts.get(("terms",), 0), counts.get(("gaps",), 0)
        if term != self._term:
            self._earlier, self._now, self._term = self._together(), {}, term
        for pupil in view.pupils:
            for ranker, sums in pupil.sums.items():
                before = pupil.sums_before.get(ranker, {})
                for measure, (queries, units) in sums.items():
                    earlier = before.get(measure, (0, 0))
                    grown = queries - earlier[0], units - earlier[1]
                    self._now[pupil.model, ranker, measure] = grown
        return self._together()

    def _together(self) -> dict[Ranked, tuple[int, int]]:
        both = dict(self._earlier)
        for path, (queries, units) in self._now.items():
            earlier = both.get(path, (0, 0))
            both[path] = earlier[0] + queries, earlier[1] + units
        return both


def steward_families(view: StewardView) -> Iterator[Metric]:
    """Every family of the steward but the quality of what it ranks, in the order of SPECS."""
    counts = view.counts
    pupils = {clean(pupil.model): pupil for pupil in view.pupils}
    yield family(IN_OFFICE, [((), int(view.in_office))])
    yield family(TERMS, [((), counts.get(("terms",), 0))])
    yield family(GAPS, [((), counts.get(("gaps",), 0))])
    yield family(RECORDS, ((key[1:], n) for key, n in counts.items() if key[0] == "records"))
    yield family(AWAITED, _awaited(view))
    here: list[tuple[str, ...]] = [()] if view.in_office else []
    yield family(UNTAKEN, ((none, view.n_waiting) for none in here))
    yield family(LEFT_ALONE, ((none, view.n_left_alone) for none in here))
    yield family(TURN, [] if view.now_ms is None else [((), seconds_of(view.now_ms))])
    yield family(RELEASES, _releases(view))
    yield family(EPOCH, (((name,), pupil.epoch) for name, pupil in pupils.items()))
    yield family(LAST_VERSION, (((name,), pupil.version) for name, pupil in pupils.items()))
    yield family(VERSION, ((path, version.number) for path, version in _versions(pupils)))
    yield family(WEIGHT, _weights(pupils))
    yield family(UPDATES, (((name,), pupil.updates) for name, pupil in pupils.items()))
    losses = ((name, pupil.loss) for name, pupil in pupils.items())
    yield family(LOSS, (((name,), loss) for name, loss in losses if loss is not None))
    yield family(FROZEN, (((name,), int(bool(p.frozen))) for name, p in pupils.items()))
    yield family(EVIDENCE, _evidence(pupils))
    needed = (((name,), pupil.evidence_needed) for name, pupil in pupils.items())
    yield family(EVIDENCE_NEEDED, needed)
    yield family(TRACES, (((name,), pupil.n_traces) for name, pupil in pupils.items()))


def _awaited(view: StewardView) -> Samples:
    if view.in_office:
        for task in range(view.n_tasks):
            yield (str(task),), int(task in view.awaited)


def _releases(view: StewardView) -> Samples:
    """Of the first models that this process knew; those beyond are one."""
    counts: dict[tuple[str, str], int] = {}
    told = [(clean(key[1]), key[2], n) for key, n in view.counts.items() if key[0] == "releases"]
    known = list(dict.fromkeys([*(name for name, _, _ in told), *(p.model for p in view.pupils)]))
    shown = {clean(name) for name in known[:MOST_MODELS]}
    for name in shown:
        counts |= {(name, status): 0 for status in get_args(Status)}
    for name, status, n in told:
        path = (name if name in shown else OTHER, status)
        counts[path] = counts.get(path, 0) + n
    return counts.items()


def _versions(pupils: Mapping[str, PupilView]) -> Iterator[tuple[tuple[str, str], Version]]:
    for name, pupil in pupils.items():
        for ranker, version in ((CHAMPION, pupil.champion), (CANDIDATE, pupil.candidate)):
            if version is not None:
                yield (name, ranker), version


def _weights(pupils: Mapping[str, PupilView]) -> Samples:
    shown: dict[tuple[str, ...], float] = {}
    for path, version in _versions(pupils):
        pairs = list(zip(version.feature_names, version.weights, strict=True))[:MOST_FEATURES]
        shown |= {(*path, clean(feature)): weight for feature, weight in pairs}
    return shown.items()


def _evidence(pupils: Mapping[str, PupilView]) -> Samples:
    for name, pupil in pupils.items():
        yield (name, "for"), pupil.evidence_for
        yield (name, "against"), pupil.evidence_against

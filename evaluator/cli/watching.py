"""The watch of the alarms, from settings."""

from evaluator.cli.wiring import digest_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.config.settings import SPECS
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.measures import MeasureSet
from evaluator.core.online.watched import WatchRules


def watch_rules_of(settings: Settings, measures: MeasureSet) -> WatchRules:
    """The rules of the watch; *alarms* is on."""
    known = [name for name in settings.alarm_measures if name in measures.columns]
    canonical = measures.canonical_of
    objectives = {canonical(name): value for name, value in settings.alarm_objectives}
    return WatchRules(
        alarms=AlarmRules(
            settings.alarm_tolerance, settings.alarm_budget_days, settings.alarm_max_series
        ),
        measures=tuple(dict.fromkeys(map(canonical, known))),
        rankers=settings.alarm_rankers,
        levels=settings.alarm_levels,
        pairs=_pairs(settings.alarm_pairs),
        variants=_pairs(settings.alarm_variants),
        objectives=tuple(objectives.items()),
        maturity_ms=settings.maturity_ms,
        unbounded=frozenset(each.canonical for each in measures.measures if each.kind.above_one),
    )


def _pairs(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((first, other) for first, _, other in (each.partition("-") for each in texts))


def watch_fingerprint(settings: Settings) -> str:
    """A hash of the rules and settings on which the state of the watch depends."""
    names = [name for name in settings.semantic_settings() if name not in {"measures", "segments"}]
    names += [name for name in SPECS if name.startswith("alarm_")]
    meaning: dict[str, object] = {name: getattr(settings, name) for name in names}
    origins = {name: measure_set(settings).origins.get(name) for name in settings.alarm_measures}
    return digest_of({**meaning, "origins": origins})

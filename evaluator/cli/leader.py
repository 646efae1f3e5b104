"""The leader and its rules of learning and alarms, from settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import asdict

from evaluator.adapters.files import read_file
from evaluator.adapters.minilm import EmbedderMissingError, MiniLM
from evaluator.cli.exits import UsageError
from evaluator.cli.wiring import digest_of, fingerprint_of, from_settings, mapping_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.config.settings import SPECS
from evaluator.core.alarms.rules import AlarmRules
from evaluator.core.features import Embedder, HashedNgrams, Remembered
from evaluator.core.learning.learner import Learner
from evaluator.core.learning.optimisers import Numbers
from evaluator.core.learning.transforms import Transform, Transforms, of_features
from evaluator.core.measures import MeasureSet
from evaluator.core.online.offline_ranking import OfflineRanking
from evaluator.core.online.rules import Rules
from evaluator.core.online.watched import WatchRules
from evaluator.core.promotion.gate import PRESETS, GateRules
from evaluator.core.promotion.source_weights import SourceRule, SourceWeights
from evaluator.leader import Leader
from evaluator.leader.alarms import LeaderAlarms
from evaluator.ports import Leadership, SourceUnusable
from evaluator.wire.alarms.state import AlarmState
from evaluator.wire.weights.checksum import WeightsRefused
from evaluator.wire.weights.leader_state import RecordWriter
from evaluator.wire.weights.weights_record import Weights, read_weights

log = structlog.get_logger(__name__)


def leader_of(leadership: Leadership, settings: Settings) -> Leader:
    """The leader process of these settings; *learning* or *alarms* is on."""
    measures, fingerprint = measure_set(settings), fingerprint_of(settings)
    rules = rules_of(settings, measures) if settings.learns else None
    record_writer = RecordWriter("", {}, fingerprint)
    if rules is not None:
        record_writer = record_writer_of(settings, rules, input_fingerprint=fingerprint)
    alarms = None
    if settings.alarms:
        state = AlarmState(watch_fingerprint(settings), fingerprint)
        alarms = LeaderAlarms(watch_rules_of(settings, measures), state)
    return Leader(
        leadership, measures=measures, record_writer=record_writer, rules=rules, alarms=alarms
    )


def embedder_of(settings: Settings) -> Embedder:
    """The embedder of described queries. Raises UsageError."""
    if settings.embedder == "ngrams":
        return Remembered(HashedNgrams())
    try:
        return Remembered(MiniLM())
    except EmbedderMissingError as error:
        raise UsageError(f"embedder is {settings.embedder}, and {error}.") from None


def rules_of(settings: Settings, measures: MeasureSet) -> Rules:
    """The rules of the leader; *learning* is not off. Raises UsageError."""
    _require_propensities(settings)
    return Rules(
        mode="auto" if settings.learning == "auto" else "propose",
        learner=from_settings(Learner, settings),
        batch_queries=settings.batch_queries,
        gate=_gate_rules_of(settings, measures),
        offline_ranking=from_settings(OfflineRanking, settings, measures=measures),
        learning_interval_ms=max(1, settings.learning_interval_ms),
        source_weights=source_weights_of(settings) if settings.source_weights else None,
        implicit_sources=frozenset(settings.implicit_sources),
        initial_weights=initial_weights_of(settings),
        embedder=embedder_of(settings),
        transforms=transforms_of(settings),
    )


def transforms_of(settings: Settings) -> Transforms:
    """The transforms of features by name."""
    return {name: Transform.parse(text) for name, text in settings.feature_transforms}


def _gate_rules_of(settings: Settings, measures: MeasureSet) -> GateRules:
    names = ("alpha", "block_ms", "min_traces", "min_age_ms", "max_age_ms", "cool_down_ms")
    values = {name: getattr(settings, f"gate_{name}") for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    rules = GateRules(
        measures.canonical_of(settings.gate_measure),
        {measures.canonical_of(name): share for name, share in settings.gate_guardrails},
        **{**PRESETS[settings.gate], **given},
    )
    if rules.max_age_ms <= rules.min_age_ms:
        raise UsageError(
            f"experiments end at an age of {rules.max_age_ms} ms (gate_max_age_ms), and promotions "
            f"need {rules.min_age_ms} ms (gate_min_age_ms), so no challenger could be promoted. "
            f"Set gate_max_age_ms to more, e.g. {10 * max(1, rules.min_age_ms)}."
        )
    return rules


def _require_propensities(settings: Settings) -> None:
    """Refuses or warns of clicks on mapped rankings without propensities. Raises UsageError."""
    mapping = mapping_of(settings) if settings.implicit_sources else None
    rankings = None if mapping is None else mapping.logs.get("rankings")
    if rankings is None or rankings.function is not None or "propensity" in rankings.rows:
        return
    text = (
        f"implicit_sources is {','.join(settings.implicit_sources)}, and {settings.mapping} has no "
        "propensity in [rankings.rows], so weights would learn the served order. Map it"
    )
    if settings.learning == "auto":
        raise UsageError(f"{text}, or set learning to propose.")
    log.warning("clicks_without_propensities", hint=f"{text}.")


def weights_in(path: Path) -> Weights:
    """The weights in a file. Raises SourceUnusable."""
    try:
        return read_weights(read_file(path))
    except WeightsRefused as error:
        raise SourceUnusable(f"{path}: {error}") from None


def initial_weights_of(settings: Settings, names: Sequence[str] | None = None) -> Numbers:
    """The initial weights; those of a file must be for the features *names*, if given.

    Raises:
        UsageError, SourceUnusable: for a file that has others, or cannot be used.
    """
    given = settings.initial_weights
    if not isinstance(given, str):
        return given
    weights = weights_in(Path(given))
    if names is not None and weights.feature_names != list(names):
        raise UsageError(
            f"initial_weights {given} are for the features {', '.join(weights.feature_names)}, and "
            f"the groups have {', '.join(names)}. Give weights for these features, in this order."
        )
    if weights.of_features != of_features(transforms_of(settings), weights.feature_names):
        raise UsageError(
            f"initial_weights {given} are for other transforms than those of feature_transforms. "
            "Set feature_transforms to those in its record, or give other weights."
        )
    return tuple(map(float, weights.weights))


def source_weights_of(settings: Settings) -> SourceWeights:
    """Weights and limits of judgments by source; the window is a learning interval."""
    most, shares = dict(settings.source_max_judgments), dict(settings.source_max_share)
    return SourceWeights(
        {
            name: SourceRule(weight, most.get(name), shares.get(name, 1.0))
            for name, weight in settings.source_weights
        }
    )


def record_writer_of(
    settings: Settings, rules: Rules, *, input_fingerprint: str = ""
) -> RecordWriter:
    """The writer of the records of a leader, for workers with this fingerprint."""
    published: dict[str, Any] = {
        **asdict(rules.learner),
        "learning": rules.mode,
        "embedder": rules.embedder.name,
        "batch_queries": rules.batch_queries,
        "initial_weights": list(rules.initial_weights),
        "map_graded_max_grade": rules.max_grade,
        "gate": asdict(rules.gate),
        "source_weights": dict(settings.source_weights),
        "source_max_judgments": dict(settings.source_max_judgments),
        "source_max_share": dict(settings.source_max_share),
        "learning_interval_ms": rules.learning_interval_ms,
    }
    if settings.feature_transforms:
        published["feature_transforms"] = dict(settings.feature_transforms)
    defaults = Settings()  # a setting with its default is not part of the meaning
    of_clicks = {
        name: getattr(settings, name)
        for name in ("implicit_sources", "ips_clip")
        if getattr(settings, name) != getattr(defaults, name)
    }
    meaning = {
        **published,
        **{name: getattr(settings, name) for name in ("empty", "ties", "judged_only")},
        "measures": list(settings.measures),
        "maturity_ms": settings.maturity_ms,
        **of_clicks,
    }
    return RecordWriter(digest_of(meaning), published, input_fingerprint)


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

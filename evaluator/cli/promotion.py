"""From settings to the rules of the leader."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from evaluator.adapters.minilm import EmbedderMissingError, MiniLM
from evaluator.cli.wiring import UsageError
from evaluator.config import Settings
from evaluator.core.features import Embedder, HashedNgrams, Remembered
from evaluator.core.learning.learner import Learner
from evaluator.core.measures import MeasureSet
from evaluator.core.online.offline_ranking import OfflineRanking
from evaluator.core.online.rules import Rules
from evaluator.core.promotion.gate import GateRules
from evaluator.core.promotion.source_weights import SourceRule, SourceWeights
from evaluator.wire.weights.leader_state import RecordWriter


def learner_of(settings: Settings) -> Learner:
    """How is learned, by `fit` as by the leader."""
    return Learner(
        loss=settings.loss,
        label_mode=settings.label_mode,
        optimizer=settings.optimizer,
        schedule=settings.schedule,
        learning_rate=settings.learning_rate,
        l2=settings.l2,
        scale=settings.scale,
        clip_norm=settings.clip_norm,
    )


def embedder_of(settings: Settings) -> Embedder:
    """What features of described queries are made with. Raises UsageError."""
    if settings.embedder == "ngrams":
        return Remembered(HashedNgrams())
    try:
        return Remembered(MiniLM())
    except EmbedderMissingError as error:
        raise UsageError(f"embedder is {settings.embedder}, and {error}.") from None


def rules_of(settings: Settings, measures: MeasureSet) -> Rules:
    """The rules of the leader; *learning* is not off."""

    def canonical(spelling: str) -> str:
        return measures.canonical[measures.column_of(spelling)]

    return Rules(
        mode="auto" if settings.learning == "auto" else "propose",
        learner=learner_of(settings),
        batch_queries=settings.batch_queries,
        gate=GateRules(
            canonical(settings.gate_measure),
            {canonical(name): share for name, share in settings.gate_guardrails},
            alpha=settings.gate_alpha,
            min_traces=settings.gate_min_traces,
            min_age_ms=settings.gate_min_age_ms,
            cool_down_ms=settings.gate_cool_down_ms,
        ),
        offline_ranking=OfflineRanking(
            measures,
            empty=settings.empty,
            ties=settings.ties,
            judged_only=settings.judged_only,
        ),
        learning_interval_ms=max(1, settings.learning_interval_ms),
        source_weights=source_weights_of(settings) if settings.source_weights else None,
        initial_weights=settings.initial_weights,
        embedder=embedder_of(settings),
    )


def source_weights_of(settings: Settings) -> SourceWeights:
    """What judgments are worth by source, an interval being the window."""
    most, shares = dict(settings.source_max_judgments), dict(settings.source_max_share)
    return SourceWeights(
        {
            name: SourceRule(weight, most.get(name), shares.get(name, 1.0))
            for name, weight in settings.source_weights
        },
        window_ms=max(1, settings.learning_interval_ms),
    )


def record_writer_of(
    settings: Settings, rules: Rules, *, input_fingerprint: str = ""
) -> RecordWriter:
    """What writes the records of a leader with these rules, for workers of that fingerprint."""
    told: dict[str, Any] = {
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
    meaning = {
        **told,
        **{name: getattr(settings, name) for name in ("empty", "ties", "judged_only")},
        "measures": list(settings.measures),
        "maturity_ms": settings.maturity_ms,
    }
    fingerprint = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]
    return RecordWriter(fingerprint, told, input_fingerprint)

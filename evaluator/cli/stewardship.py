"""From settings to the rules of the steward."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from evaluator.adapters.minilm import EmbedderMissingError, MiniLM
from evaluator.cli.wiring import UsageError
from evaluator.config import Settings
from evaluator.core.contest import Contest
from evaluator.core.features import Embedder, HashedNgrams, Remembered
from evaluator.core.gate import GateRules
from evaluator.core.learner import Learner
from evaluator.core.measures import MeasureSet
from evaluator.core.releases import Rules
from evaluator.core.trust import SourceRule, TrustRules
from evaluator.wire.stewardship import Scribe


def learner_of(settings: Settings) -> Learner:
    """How is learned, by `fit` as by the steward."""
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
    """The rules of the steward; *learning* is not off."""

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
        contest=Contest(
            measures,
            empty=settings.empty,
            ties=settings.ties,
            judged_only=settings.judged_only,
        ),
        turn_ms=max(1, settings.turn_ms),
        trust=trust_of(settings) if settings.trusted_sources else None,
        initial_weights=settings.initial_weights,
        embedder=embedder_of(settings),
    )


def trust_of(settings: Settings) -> TrustRules:
    """What judgments are worth by source, a turn being the window."""
    most, shares = dict(settings.trusted_max_judgments), dict(settings.trusted_max_share)
    return TrustRules(
        {
            name: SourceRule(weight, most.get(name), shares.get(name, 1.0))
            for name, weight in settings.trusted_sources
        },
        window_ms=max(1, settings.turn_ms),
    )


def scribe_of(settings: Settings, rules: Rules, *, input_lineage: str = "") -> Scribe:
    """What writes the records of a steward with these rules, for workers of that lineage."""
    told: dict[str, Any] = {
        **asdict(rules.learner),
        "learning": rules.mode,
        "embedder": rules.embedder.name,
        "batch_queries": rules.batch_queries,
        "initial_weights": list(rules.initial_weights),
        "map_graded_max_grade": rules.max_grade,
        "gate": asdict(rules.gate),
        "trusted_sources": dict(settings.trusted_sources),
        "trusted_max_judgments": dict(settings.trusted_max_judgments),
        "trusted_max_share": dict(settings.trusted_max_share),
        "turn_ms": rules.turn_ms,
    }
    meaning = {
        **told,
        **{name: getattr(settings, name) for name in ("empty", "ties", "judged_only")},
        "measures": list(settings.measures),
        "maturity_ms": settings.maturity_ms,
    }
    lineage = hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]
    return Scribe(lineage, told, input_lineage)

"""Settings that contradict each other."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from evaluator.config.kinds import ConfigError
from evaluator.core.learning.names import LABEL_MODES

if TYPE_CHECKING:
    from evaluator.config.settings import Settings

DEFAULT_ALARM_MEASURES = ("ndcg@10",)


def check(settings: "Settings") -> None:
    """Raises ConfigError for the first contradiction."""
    for contradiction in _contradictions(settings):
        raise ConfigError(contradiction)


def _contradictions(settings: "Settings") -> Iterator[str]:
    if settings.maturity_ms > settings.retention_ms:
        yield (
            f"maturity_ms is {settings.maturity_ms} and retention_ms is {settings.retention_ms}, "
            "so queries would expire before they settle. Set maturity_ms to at most retention_ms, "
            f"e.g. {min(settings.retention_ms, 3_600_000)}."
        )
    if settings.silence == "zero" and settings.empty == "skip":
        yield (
            "silence is zero, which counts a query without a grade as 0, and empty is skip, which "
            "excludes it. Set empty to zero, or silence to unjudged."
        )
    if settings.silence == "zero" and not settings.maturity_ms:
        yield (
            "silence is zero and maturity_ms is 0, so no user has time to answer. Set maturity_ms "
            "to the time in which clicks come, e.g. 3600000 (one hour)."
        )
    if settings.label_mode != LABEL_MODES[0] and settings.loss != "softmax":
        yield (
            f"label_mode is {settings.label_mode}, which applies to loss = softmax only, and loss "
            f"is {settings.loss}. Leave label_mode out, or set loss to softmax."
        )
    if settings.learns:
        yield from _contradictions_of_learning(settings)
    if settings.alarms:
        yield from _contradictions_of_alarms(settings)
    yield from _not_in_measures(settings, "histogram_measures", settings.histogram_measures)
    yield from _not_in_measures(settings, "segment_measures", settings.segment_measures)
    yield from _not_in_segments(settings, "segment_levels", settings.segment_levels)
    if settings.security_protocol.startswith("SASL_"):
        for name, example in (
            ("sasl_username", "evaluator"),
            ("sasl_password_file", "/run/secrets/kafka-password"),
        ):
            if getattr(settings, name) is None:
                yield (
                    f"security_protocol is {settings.security_protocol}, but {name} is not set. "
                    f"Set it, e.g. {example}."
                )
    for pair in (
        ("ssl_certfile", "ssl_keyfile"),
        ("http_tls_certfile", "http_tls_keyfile"),
        ("registry_username", "registry_password_file"),
    ):
        if len({getattr(settings, name) is None for name in pair}) == 2:
            yield f"{pair[0]} and {pair[1]} belong together. Set both or neither."


def _contradictions_of_learning(settings: "Settings") -> Iterator[str]:
    yield from _not_in_measures(settings, "gate_measure", (settings.gate_measure,))
    guardrails = [name for name, _ in settings.gate_guardrails]
    yield from _not_in_measures(settings, "gate_guardrails", guardrails)
    if settings.gate_measure in guardrails:
        yield (
            f"{settings.gate_measure} is the gate_measure, so it cannot be among gate_guardrails. "
            "Remove it there."
        )
    if settings.gate_alpha is not None and settings.gate_alpha >= 1:
        yield f"gate_alpha is {settings.gate_alpha}; set it below 1, e.g. 0.01."
    for source, _ in (*settings.source_max_judgments, *settings.source_max_share):
        if source not in dict(settings.source_weights):
            yield (
                f"source_max_judgments or source_max_share names {source!r}, which is not in "
                f"source_weights. Add its weight there, e.g. {source}=1."
            )
    if settings.learning == "auto" and not any(weight for _, weight in settings.source_weights):
        yield (
            "learning is auto, and no source has a weight in source_weights, so every sender of "
            "judgments could promote weights. Name a source, e.g. human=1, or set learning to "
            "propose."
        )


def _contradictions_of_alarms(settings: "Settings") -> Iterator[str]:
    if settings.alarm_measures != DEFAULT_ALARM_MEASURES:
        yield from _not_in_measures(settings, "alarm_measures", settings.alarm_measures)
    objectives = [name for name, _ in settings.alarm_objectives]
    yield from _not_in_measures(settings, "alarm_objectives", objectives)
    yield from _not_in_segments(settings, "alarm_levels", settings.alarm_levels)


def _not_in_segments(
    settings: "Settings", role: str, levels: Iterable[tuple[str, str]]
) -> Iterator[str]:
    for segment, level in levels:
        if segment not in settings.segments:
            written = f"{segment}={level}"
            yield (
                f"{role} has {written!r}, and {segment!r} is not in segments, so no query has "
                "its levels. Add it to segments."
            )


def _not_in_measures(settings: "Settings", role: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name not in settings.measures:
            yield (
                f"{role} names {name!r}, which is not in measures. Choose from "
                f"{', '.join(map(repr, settings.measures))}, or add it there."
            )

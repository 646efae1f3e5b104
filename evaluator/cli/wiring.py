"""From settings to parts: connections, engines, fingerprint."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

from evaluator.adapters.http import Access, HttpServer, Views
from evaluator.adapters.kafka import Connection, parse_addresses
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.engine.engine import SEMANTICS, Engine
from evaluator.core.event_time.durations import Durations
from evaluator.core.join.changes import DiskTier
from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import LOGS, Log
from evaluator.exposition.label_limits import MAX_BLOCK_SERIES, SERIES_PER_MEASURE, series_of_block

KAFKA: Final = "kafka://"
KAFKA_SOURCE: Final = "kafka://HOST:PORT[,HOST:PORT]"
FILES: Final = "file://"
MAX_SHOWN_CHARS: Final = 200


class UsageError(Exception):
    """The command line asks for something that is not there; the message says what is."""


def connection_of(source: str, settings: Settings) -> Connection:
    """The brokers of a source of the form kafka://HOST:PORT[,HOST:PORT]. Raises UsageError."""
    if not source.startswith(KAFKA):
        raise UsageError(_not_understood(source, KAFKA_SOURCE, "kafka://localhost:9092"))
    try:
        addresses = parse_addresses(source.removeprefix(KAFKA).removesuffix("/"))
    except ValueError as error:
        why = f": {error}"
        raise UsageError(
            _not_understood(source, KAFKA_SOURCE, "kafka://localhost:9092", why)
        ) from None
    return Connection(
        ",".join(map(str, addresses)),
        security_protocol=settings.security_protocol,
        sasl_mechanism=settings.sasl_mechanism,
        sasl_username=settings.sasl_username,
        sasl_password_file=settings.sasl_password_file,
        ssl_cafile=settings.ssl_cafile,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )


def directory_of(source: str) -> Path:
    """The directory of a source of the form file://DIR. Raises UsageError."""
    path = source.removeprefix(FILES)
    if not source.startswith(FILES) or not path:
        forms = f"{KAFKA_SOURCE} or file://DIR"
        raise UsageError(_not_understood(source, forms, "file://./logs"))
    return Path(path)


def shown(source: str) -> str:
    """A source for an error: without what may be a password, and not longer than a line."""
    _, at, rest = source.rpartition("@")
    return f"***@{rest}"[:MAX_SHOWN_CHARS] if at else source[:MAX_SHOWN_CHARS]


def _not_understood(source: str, forms: str, example: str, why: str = "") -> str:
    return f"--source {shown(source)} is not understood here{why}. Give {forms}, e.g. {example}."


def topic_names(settings: Settings) -> dict[Log, str]:
    """Names of the input topics."""
    return {log: f"{settings.topic_prefix}{log}" for log in LOGS}


def histograms_of(settings: Settings) -> tuple[str, ...]:
    """The canonical names of the measures whose values are counted by bucket."""
    asked = settings.histogram_measures
    return measure_set(replace(settings, measures=asked)).canonical if asked else ()


def require_room_for_series(settings: Settings, where: str, instead: str) -> None:
    """Raises UsageError, if one ranker has more series than there may be of the measures."""
    measures = measure_set(settings).canonical
    if series_of_block(measures, histograms_of(settings)) > MAX_BLOCK_SERIES:
        most = MAX_BLOCK_SERIES // SERIES_PER_MEASURE
        raise UsageError(
            f"{len(measures)} measures are more than {where} has series for. Ask for at most "
            f"{most} here, fewer with histogram_measures; {instead}."
        )


def http_server(views: Views, settings: Settings) -> HttpServer:
    """What shows a worker, to those who may see it."""
    access = Access(
        token_file=settings.http_token_file,
        certfile=settings.http_tls_certfile,
        keyfile=settings.http_tls_keyfile,
    )
    return HttpServer(
        views,
        host=settings.http_host,
        port=settings.http_port,
        access=access,
        max_connections=settings.http_max_connections,
    )


def durations_of(settings: Settings) -> Durations:
    """How long things take."""
    return Durations(**{each.name: getattr(settings, each.name) for each in fields(Durations)})


def engine_settings(settings: Settings) -> dict[str, Any]:
    """What every engine is told, live and in batch, by the name that settings have there too."""
    others = ("empty", "ties", "judged_only", "freshness_half_life_ms")
    return {
        **asdict(durations_of(settings)),
        **{name: getattr(settings, name) for name in others},
    }


def new_engine(
    settings: Settings, measures: MeasureSet, task: int, *, disk_tier: DiskTier | None = None
) -> Engine:
    """The engine of a task of a live worker; *disk_tier* has its other queries."""
    return Engine(
        **engine_settings(settings),
        task=task,
        measures=measures,
        offers=settings.learns,
        disk_tier=disk_tier,
        max_bytes=settings.memory_tier_bytes,
    )


def fingerprint_of(settings: Settings) -> str:
    """Names everything that the bytes of outputs depend on: settings and semantics."""
    meaning: Mapping[str, object] = {
        "semantics": SEMANTICS,
        "emit_query": settings.emit_query,
        "third_party_measures": measure_set(settings).origins,
        **settings.semantic_settings(),
        **({"learns": True} if settings.learns else {}),
    }
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]


def needed_input_ms(settings: Settings) -> int:
    """How far back the inputs must reach for the state of the open queries to be rebuilt."""
    durations = durations_of(settings)
    return durations.state_ms + durations.key_reserved_ms

"""Builds values of other packages from settings: connections, engines, the fingerprint."""

import argparse
import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct

from evaluator.adapters.http import Access, HttpServer, Views
from evaluator.adapters.kafka import Connection, GroupSettings, parse_addresses
from evaluator.cli.arguments import KAFKA_SOURCE
from evaluator.cli.exits import UsageError
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.config.settings import SPECS
from evaluator.core.engine.engine import SEMANTICS, Emits, Engine
from evaluator.core.event_time.clock import MAX_TIMESTAMP_MS
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.settle.evaluate import ValueRules
from evaluator.core.types.records import LOGS, Log
from evaluator.core.types.segments import SegmentRules
from evaluator.core.types.skips import OffsetRange, merged
from evaluator.exposition.label_limits import (
    RESERVED_BLOCKS,
    SERIES_PER_MEASURE,
    series_beside,
    series_of_block,
)
from evaluator.ports import Finding, Partition, Prepare

if TYPE_CHECKING:
    from evaluator.adapters.registry.client import SchemaRegistry
    from evaluator.mapping.document import MappingDocument
    from evaluator.mapping.schemas import Schemas
    from evaluator.mapping.stage import Stage

KAFKA: Final = "kafka://"
FILES: Final = "file://"
ARCHIVE: Final = "archive://"
MAX_SHOWN_CHARS: Final = 200
MAX_OFFSET: Final = MAX_TIMESTAMP_MS
_SKIP: Final = re.compile(r"(.+)-([0-9]{1,9}):([0-9]{1,19})(?:-([0-9]{1,19}))?", re.ASCII)

T = TypeVar("T")
StructT = TypeVar("StructT", bound=Struct)


def warn(text: str) -> None:
    """Prints a warning to stderr."""
    print(f"evaluator: warning: {text}", file=sys.stderr)


def readable(topic: str, values: Iterable[bytes], read: Callable[[bytes], T]) -> list[T]:
    """The records of a topic that *read* takes, without deletions; warns of the others."""
    found, n_unreadable = list[T](), 0
    for value in filter(None, values):
        try:
            found.append(read(value))
        except ValueError:
            n_unreadable += 1
    if n_unreadable:
        warn(f"{n_unreadable} unreadable records of {topic} are ignored.")
    return found


def from_settings(kind: type[StructT], settings: Settings, **others: Any) -> StructT:
    """A frozen value whose fields have the names of settings; *others* take precedence."""
    names = set(kind.__struct_fields__) & SPECS.keys() - others.keys()
    return kind(**{name: getattr(settings, name) for name in names}, **others)


def connection_of(source: str, settings: Settings, *, may_be_one: bool = False) -> Connection:
    """The brokers of a source of the form kafka://HOST:PORT[,HOST:PORT]. Raises UsageError."""
    why = ""
    try:
        if source.startswith(KAFKA):
            addresses = parse_addresses(source.removeprefix(KAFKA).removesuffix("/"))
            mapping = mapping_of(settings)
            return from_settings(
                Connection,
                settings,
                bootstrap=",".join(map(str, addresses)),
                inputs=tuple(topic_names(settings, may_be_one=may_be_one).items()),
                mapped=frozenset(() if mapping is None else mapping.logs),
                has_schemas=mapping is not None and mapping.registry is not None,
            )
    except ValueError as error:
        why = f": {error}"
    raise _source_refused(source, KAFKA_SOURCE, "kafka://localhost:9092", why)


def group_of(settings: Settings) -> GroupSettings:
    """The group of the workers, which have one meaning and write to the same topics."""
    return from_settings(
        GroupSettings,
        settings,
        topic_prefix=settings.written_prefix,
        fingerprint=fingerprint_of(settings),
    )


def directory_of(source: str, forms: str = f"{KAFKA_SOURCE} or file://DIR") -> Path:
    """The directory of a source file://DIR. Raises UsageError, with the *forms* of sources."""
    path = source.removeprefix(FILES)
    if not source.startswith(FILES) or not path:
        raise _source_refused(source, forms, "file://./logs")
    return Path(path)


def shown(source: str) -> str:
    """A source for an error: shortened, and without a possible password."""
    _, at, rest = source.rpartition("@")
    return f"***@{rest}"[:MAX_SHOWN_CHARS] if at else source[:MAX_SHOWN_CHARS]


def _source_refused(source: str, forms: str, example: str, why: str = "") -> UsageError:
    return UsageError(
        f"--source {shown(source)} is not accepted here{why}. Give {forms}, e.g. {example}."
    )


def mapping_of(settings: Settings) -> "MappingDocument | None":
    """The mapping of the settings. Raises MappingRefused."""
    if settings.mapping is None:
        return None
    from evaluator.mapping.document import read_mapping  # noqa: PLC0415 - few commands map

    return read_mapping(Path(settings.mapping))


def schema_registry_of(settings: Settings) -> "SchemaRegistry | None":
    """The registry of framed records; None if there are none. Raises MappingRefused."""
    mapping = mapping_of(settings)
    if mapping is None or mapping.registry is None:
        return None
    from evaluator.adapters.registry.client import SchemaRegistry  # noqa: PLC0415 - few commands map

    return SchemaRegistry(
        mapping.registry,
        username=settings.registry_username,
        password_file=settings.registry_password_file,
        cafile=settings.registry_cafile,
        decodes_protobuf=any(each.format == "protobuf" for each in mapping.logs.values()),
    )


async def comparisons_of(settings: Settings) -> list[tuple[str, Finding]]:
    """The latest schema of each subject of the inputs, compared with the mapping."""
    mapping, registry = mapping_of(settings), schema_registry_of(settings)
    if mapping is None or registry is None:
        return []
    from evaluator.mapping.latest import comparisons  # noqa: PLC0415 - few commands map

    names = topic_names(settings, may_be_one=True)
    return await comparisons(registry, mapping.logs.values(), names)


async def compare_schemas(settings: Settings) -> None:
    """Logs where the latest schemas do not fit the mapping."""
    if found := await comparisons_of(settings):
        from evaluator.mapping.latest import log_comparisons  # noqa: PLC0415 - few commands map

        log_comparisons(found)


def schemas_of(settings: Settings, connection: Connection, *, writes: bool) -> "Schemas | None":
    """The schemas of framed records; None if there are none. An unwritten topic may be missing.

    Raises MappingRefused.
    """
    registry = schema_registry_of(settings)
    if registry is None:
        return None
    from evaluator.adapters.kafka import KafkaAnswers  # noqa: PLC0415 - few commands map
    from evaluator.mapping.schemas import Schemas  # noqa: PLC0415 - few commands map

    answers = KafkaAnswers(
        connection,
        topic_prefix=settings.written_prefix,
        registry=registry.url,
        may_be_missing=not writes,
    )
    return Schemas(registry, answers, writes=writes)


def prepare_of(schemas: "Schemas | None") -> Prepare | None:
    """The function that a source calls before it delivers records."""
    return None if schemas is None else schemas.prepare


def stages_of(
    settings: Settings, schemas: "Schemas | None" = None, *, watched: bool = False
) -> "dict[Log, Stage]":
    """The stages that map records, by log; if *watched*, they log topics without messages."""
    mapping = mapping_of(settings)
    if mapping is None:
        return {}
    from evaluator.mapping.stage import Stage  # noqa: PLC0415 - few commands map
    from evaluator.mapping.watch import MessageWatch  # noqa: PLC0415 - as above

    names = topic_names(settings, may_be_one=True)
    stage = partial(
        Stage,
        max_future_skew_ms=settings.max_future_skew_ms,
        answers={} if schemas is None else schemas.answers,
    )
    return {
        log: stage(each, watch=MessageWatch(names[log]) if watched else None)
        for log, each in mapping.logs.items()
    }


def topic_names(settings: Settings, *, may_be_one: bool = False) -> dict[Log, str]:
    """Names of the input topics. Raises UsageError if the mapping and the settings differ.

    With *may_be_one* one topic may have the records of both logs.
    """
    mapping = mapping_of(settings)
    names: dict[Log, str] = {}
    for log in LOGS:
        name = getattr(settings, f"{log}_topic")
        names[log] = f"{settings.topic_prefix}{log}" if name == log else name
        topic = None if mapping is None or log not in mapping.logs else mapping.logs[log].topic
        if topic is not None and name not in {log, topic}:
            raise UsageError(
                f"{log}_topic is {name}, and the topic of [{log}] in {settings.mapping} is "
                f"{topic}. Set one of them."
            )
        names[log] = topic or names[log]
    if names["rankings"] == names["judgments"] and not may_be_one:
        from evaluator.mapping.meeting import COPY  # noqa: PLC0415 - few commands map

        raise UsageError(
            f"{names['rankings']} is the topic of both logs. Name two topics; if one has both "
            f"kinds of record, copy it into two with {COPY}."
        )
    return names


def skips_of(options: argparse.Namespace, settings: Settings) -> dict[Partition, list[OffsetRange]]:
    """The offsets of --skip by partition. Raises UsageError."""
    logs = {name: log for log, name in topic_names(settings).items()}
    found: dict[Partition, list[OffsetRange]] = defaultdict(list)
    for text in options.skip:
        match = _SKIP.fullmatch(text)
        first, last = (0, -1) if match is None else (int(match[3]), int(match[4] or match[3]))
        if match is None or not first <= last <= MAX_OFFSET:
            raise UsageError(
                f"--skip {text[:80]!r} is not TOPIC-PARTITION:OFFSET, e.g. rankings-0:1234, or "
                "rankings-0:1234-1240 for all from the first to the last offset."
            )
        if match[1] not in logs:
            raise UsageError(
                f"--skip {text[:80]!r} does not name an input topic. The input topics are "
                f"{' and '.join(logs)}."
            )
        found[logs[match[1]], int(match[2])].append((first, last))
    return {partition: merged(ranges) for partition, ranges in found.items()}


def histograms_of(settings: Settings) -> tuple[str, ...]:
    """The canonical names of the measures whose values are counted by bucket."""
    measures = measure_set(settings)
    return tuple(dict.fromkeys(map(measures.canonical_of, settings.histogram_measures)))


def require_room_for_series(settings: Settings, where: str, instead: str) -> None:
    """Raises UsageError if the measures of one ranker exceed the limit of series."""
    measures = measure_set(settings).canonical
    max_series = series_beside(settings.segments) // (1 + RESERVED_BLOCKS)  # of all other pairs
    if series_of_block(measures, histograms_of(settings)) > max_series:
        most = max_series // SERIES_PER_MEASURE
        raise UsageError(
            f"{len(measures)} measures exceed the series limit of {where}. Set at most {most} "
            f"measures, fewer with histogram_measures; {instead}."
        )


def http_server(views: Views, settings: Settings) -> HttpServer:
    """The HTTP server of a process."""
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


def new_engine(settings: Settings, measures: MeasureSet, task: int, **options: Any) -> Engine:
    """The engine of a task; *options* are further arguments."""
    values = from_settings(ValueRules, settings)
    emits = Emits(offers=settings.learns, segments=segment_rules_of(settings))
    options = {"emits": emits, **options}
    return Engine(task, from_settings(JoinRules, settings), measures, values=values, **options)


def segment_rules_of(settings: Settings) -> SegmentRules:
    """The segments of the settings, and the levels and measures of their sums."""
    declared = {
        segment: frozenset(level for name, level in settings.segment_levels if name == segment)
        for segment in settings.segments
    }
    return SegmentRules(settings.segments, declared, settings.segment_measures)


def meaning_of(settings: Settings) -> str:
    """The meaning: a hash of everything on which values and sums depend, except the inputs.

    Settings with their default are left out, so that a later version with more of them agrees.
    """
    defaults = Settings().semantic_settings()
    changed = {
        name: value
        for name, value in settings.semantic_settings().items()
        if value != defaults[name]
    }
    if origins := measure_set(settings).origins:
        changed["third_party_measures"] = origins
    return digest_of({"semantics": SEMANTICS, **changed, **mapping_hash(settings)})


def fingerprint_of(settings: Settings) -> str:
    """The fingerprint of a state: a hash of its meaning, and of other settings of its outputs."""
    outputs = {"emit_query": settings.emit_query, "learns": settings.learns}
    return digest_of({"meaning": meaning_of(settings), **outputs})


def mapping_hash(settings: Settings) -> dict[str, str]:
    """The hash of the mapping by name, if there is one."""
    mapping = mapping_of(settings)
    return {} if mapping is None else {"mapping": mapping.hash}


def digest_of(meaning: Mapping[str, object]) -> str:
    """16 hexadecimal digits of a document."""
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]


def needed_input_ms(settings: Settings) -> int:
    """How far back the inputs must reach so that the state of open queries can be rebuilt."""
    rules = from_settings(JoinRules, settings)
    return rules.state_ms + rules.key_reserved_ms

"""The range of records that `replay` and `fit` read."""

import argparse
import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from evaluator.adapters.files import MAX_PARTITIONS, ArchiveRange, FileRange, SampleRange, read_file
from evaluator.adapters.kafka import KafkaRange
from evaluator.cli.arguments import KAFKA_SOURCE
from evaluator.cli.exits import UsageError
from evaluator.cli.wiring import (
    ARCHIVE,
    KAFKA,
    connection_of,
    directory_of,
    from_settings,
    mapping_hash,
    mapping_of,
    meaning_of,
    new_engine,
    prepare_of,
    schemas_of,
    segment_rules_of,
    skips_of,
    stages_of,
    topic_names,
)
from evaluator.config import Settings
from evaluator.core.engine.engine import Emits
from evaluator.core.join.rules import JoinRules
from evaluator.core.measures import MeasureSet
from evaluator.core.types.records import Log
from evaluator.ports import Partition, RangeSource
from evaluator.replay.ranges import ReadRules, parse_time_ms
from evaluator.replay.run import ReplayRules
from evaluator.wire.records import MAX_RECORD_BYTES

if TYPE_CHECKING:
    from evaluator.mapping.schemas import Schemas

Bounds = Mapping[Partition, tuple[int, int]]
"""First and end offset of partitions."""
_TASKS: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


def read_rules_of(
    options: argparse.Namespace, settings: Settings, *, features: bool = False
) -> ReadRules:
    """The rules of --from, --to and --skip. Raises UsageError."""
    begin, end = options.begin, options.end
    try:
        from_ms, to_ms = (None if text is None else parse_time_ms(text) for text in (begin, end))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise UsageError(f"--from {begin} is not before --to {end}, so the range is empty.")
    skips = skips_of(options, settings)
    schemas = _schemas_of(options, settings)
    return from_settings(
        ReadRules,
        settings,
        schemas=schemas,
        from_ms=from_ms,
        to_ms=to_ms,
        features=features,
        skips=skips,
        stages={} if options.samples is not None else stages_of(settings, schemas),
        tasks=tasks_in(getattr(options, "tasks", None)),
    )


def tasks_in(text: str | None) -> tuple[int, ...] | None:
    """The numbers of --tasks in order, None without. Raises UsageError.

    >>> tasks_in("5,0-2")
    (0, 1, 2, 5)
    """
    if text is None:
        return None
    found: set[int] = set()
    for each in text.split(","):
        match = _TASKS.fullmatch(each)
        first, last = (1, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not first <= last < MAX_PARTITIONS:
            raise UsageError(
                f"--tasks {text[:80]!r} is not a list of tasks, e.g. 0-15 or 0-3,8, each from 0 to "
                f"{MAX_PARTITIONS - 1}."
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _schemas_of(options: argparse.Namespace, settings: Settings) -> "Schemas | None":
    """The schemas of a range of topics, first those of --schemas. Raises UsageError."""
    schemas, path = None, getattr(options, "schemas", None)
    if options.samples is None and options.source.startswith(KAFKA):
        connection = connection_of(options.source, settings)
        schemas = schemas_of(settings, connection, writes=False)
    if path is not None and schemas is None:
        raise UsageError("--schemas needs topics and a mapping with a registry. Leave it out.")
    if path is not None and schemas is not None:
        schemas.adopt_saved(read_file(path), str(path))
    return schemas


def source_of(
    options: argparse.Namespace, settings: Settings, rules: ReadRules, bounds: Bounds | None = None
) -> RangeSource:
    """The source of records; *bounds* replace those of the logs."""
    if options.samples is not None:
        if options.begin is not None or options.end is not None:
            raise UsageError("samples have no times: leave --from and --to out.")
        return SampleRange(options.samples, features=rules.features)
    if options.source.startswith(KAFKA):
        connection, prefix = connection_of(options.source, settings), settings.written_prefix
        return KafkaRange(
            connection,
            topic_prefix=prefix,
            skips=rules.skips,
            bounds=bounds,
            prepare=prepare_of(rules.schemas),
        )
    if options.source.startswith(ARCHIVE):
        require_no_keys(settings)
        url = options.source.removeprefix(ARCHIVE)
        limits = dict.fromkeys(rules.stages, MAX_RECORD_BYTES)
        strict = getattr(options, "strict", False)
        return ArchiveRange(url, topic_names(settings), limits, bounds, strict=strict)
    directory_of(options.source, f"{KAFKA_SOURCE}, file://DIR or {ARCHIVE}URL")
    return files_of(options.source, settings, rules.stages, bounds)


def files_of(
    source: str, settings: Settings, mapped: Collection[Log], bounds: Bounds | None = None
) -> FileRange:
    """The logs in a directory, the *mapped* ones with records of foreign formats."""
    require_no_keys(settings)
    limits = dict.fromkeys(mapped, MAX_RECORD_BYTES)
    return FileRange(directory_of(source), topic_names(settings), limits, bounds)


def replay_rules_of(
    options: argparse.Namespace,
    settings: Settings,
    measures: MeasureSet,
    read: ReadRules,
    *,
    learns: bool,
) -> ReplayRules:
    """The rules of a replay; by default queries settle at the end of files, not of topics."""
    at_end = getattr(options, "at_end", None)
    if at_end is None:
        is_live = options.samples is None and options.source.startswith(KAFKA)
        at_end = "hold" if is_live else "settle"
    segments = segment_rules_of(settings)
    emits = Emits(evaluations=False, finished=True, offers=learns, segments=segments)
    make = partial(new_engine, settings, measures, emits=emits)
    return from_settings(
        ReplayRules,
        settings,
        semantic_settings={**settings.semantic_settings(), **mapping_hash(settings)},
        join=from_settings(JoinRules, settings),
        measures=measures,
        new_engine=make,
        read=read,
        at_end=at_end,
        learns=learns,
        segments=segments,
        meaning=meaning_of(settings),
    )


def require_no_keys(settings: Settings) -> None:
    """Raises UsageError if a mapping names keys or headers, which files do not have."""
    mapping = mapping_of(settings)
    for log, each in {} if mapping is None else mapping.logs.items():
        if each.format not in {"json", "otlp"}:
            raise UsageError(
                f"{settings.mapping}: [{log}] has format = {each.format}, and files have lines of "
                "JSON. Read the topic, --source kafka://HOST:PORT."
            )
        for path in each.outside_value():
            raise UsageError(
                f"{settings.mapping}: [{log}] names {path.text}, and files have no keys and "
                "headers. Name a path in the value, or read the topic."
            )

"""`map`: foreign topics to canonical ones."""

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from evaluator.adapters.kafka import GroupSettings, KafkaCanonicalSink, KafkaForeignSource
from evaluator.adapters.prometheus import MapperCollector, Series, exposition, registry_of
from evaluator.cli.exits import UsageError
from evaluator.cli.live import serve, tune_interpreter
from evaluator.cli.views import ProcessViews
from evaluator.cli.wiring import (
    compare_schemas,
    connection_of,
    from_settings,
    mapping_of,
    prepare_of,
    schemas_of,
    stages_of,
    topic_names,
)
from evaluator.config import Settings
from evaluator.core.join.rules import JoinRules
from evaluator.core.types.records import LOGS, Log
from evaluator.mapping.backlog import NO_CLOCK, Decode
from evaluator.mapping.mapper import Mapper, MapperSettings
from evaluator.mapping.progress import RepeatRules
from evaluator.ports import Sink
from evaluator.version import __version__
from evaluator.wire.messages.staged import Decoding
from evaluator.wire.outputs.sizes import OVERSIZE_OUTPUT

GROUP_SUFFIX = "-map"


def map(options: argparse.Namespace, settings: Settings) -> int:  # noqa: A001 - the command's name
    """`evaluator map`."""
    mapping = mapping_of(settings)
    if mapping is None:
        raise UsageError("The setting mapping, or --mapping FILE, is required.")
    names = topic_names(settings, may_be_one=True)
    written = _written(options.to, {log: names[log] for log in mapping.logs})
    connection = connection_of(options.source, settings, may_be_one=True)
    group = from_settings(GroupSettings, settings, group_id=f"{settings.group_id}{GROUP_SUFFIX}")
    decoding = Decoding(max_future_skew_ms=settings.max_future_skew_ms)
    decode: dict[Log, Decode] = {"rankings": decoding.rankings, "judgments": decoding.judgments}
    schemas = schemas_of(settings, connection, writes=True)
    is_one = len({names[log] for log in mapping.logs}) < len(mapping.logs)  # it has both
    of_stages = stages_of(settings, schemas, watched=not is_one)
    of_logs = {log: (stage, decode[log]) for log, stage in of_stages.items()}
    stages = {LOGS[0]: of_logs} if is_one else {log: {log: it} for log, it in of_logs.items()}
    topics = {log: names[log] for log in stages}
    source = KafkaForeignSource(connection, group, topics, written, prepare_of(schemas))
    sink = KafkaCanonicalSink(connection, written, topic_prefix=settings.written_prefix)
    mapper = Mapper(
        *(source, sink, stages),
        from_settings(
            MapperSettings,
            settings,
            group_id=group.group_id,
            topic_names=names,
            max_lead_ms=settings.out_of_orderness_ms // 2,
            repeats=RepeatRules(
                from_settings(JoinRules, settings).key_reserved_ms,
                accept_repeats=options.accept_repeats,
            ),
        ),
    )

    async def work() -> None:
        tune_interpreter()
        await compare_schemas(settings)
        await mapper.run()

    views = MapperViews(mapper, settings, lost=source.bounds.lost, sink=sink)
    return asyncio.run(serve(work, mapper.stop, views, settings, options))


def _written(to: str, sources: Mapping[Log, str]) -> dict[Log, str]:
    """The topics of --to for the logs that are mapped. Raises UsageError."""
    names = dict(zip(LOGS, to.split(","), strict=False))
    if to.count(",") != 1 or not all(names.values()) or len(set(names.values())) == 1:
        raise UsageError(f"--to {to[:80]} is not two topics. Give RANKINGS,JUDGMENTS.")
    for name in names.values():
        if name in sources.values():
            raise UsageError(
                f"{name} is a topic of the mapping, and --to would write to it. Name another one "
                "with --to."
            )
    return {log: names[log] for log in sources}


class MapperViews(ProcessViews):
    """The views of a mapper for its HTTP server; *lost* records expired before they were read."""

    reads_queries = False

    def __init__(
        self, mapper: Mapper, settings: Settings, *, lost: Mapping[Log, int], sink: Sink
    ) -> None:
        super().__init__(None, settings)
        self._mapper, self._lost, self._sink = mapper, lost, sink
        collector = MapperCollector(
            self._figures, ready=lambda: not self.readiness(), version=__version__
        )
        self.registry = registry_of(collector)

    def readiness(self) -> list[str]:
        return self._mapper.readiness()

    def alive(self) -> bool:
        return self._mapper.alive()

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        return exposition(self.registry, accept)

    def status(self) -> Mapping[str, Any]:
        """The document of /status, with the partitions of the mapper."""
        lags = self._mapper.lags()
        partitions = {
            f"{log}-{number}": {
                "position": reading.place[0],
                "clock_ms": None if reading.place[1] == NO_CLOCK else reading.place[1],
                "lag": lags.get((log, number)),
            }
            for (log, number), reading in sorted(self._mapper.readings.items())
        }
        commit_ms = self._mapper.last_commit_ms
        return {**super().status(), "last_commit_ms": commit_ms, "partitions": partitions}

    def _figures(self) -> Series:
        mapper, readings = self._mapper, self._mapper.readings.items()
        commit_ms, memory = mapper.last_commit_ms, self.resources().memory_limit
        letters = {**mapper.reasons, OVERSIZE_OUTPUT: self._sink.refused}
        return {
            "map_records": [(path, n) for path, n in sorted(mapper.counts.items())],
            "map_messages": [((log,), n) for log, n in sorted(mapper.n_written.items())],
            "map_paused_partitions": [((), mapper.paused)],
            "map_begun_anew": [((log,), mapper.topics.n_recreated[log]) for log in LOGS],
            "map_clock_timestamp_seconds": [
                ((log, str(number)), reading.place[1] / 1000)
                for (log, number), reading in readings
                if reading.place[1] != NO_CLOCK
            ],
            "dead_letters": [((reason,), n) for reason, n in sorted(letters.items())],
            "map_lag": [((log, str(n)), lag) for (log, n), lag in mapper.lags().items()],
            "input_records_lost": [((log,), self._lost.get(log, 0)) for log in LOGS],
            "memory_limit_bytes": [] if memory is None else [((), memory)],
            "last_commit_timestamp_seconds": (
                [] if commit_ms is None else [((), commit_ms / 1000)]
            ),
        }

"""`merge`: the results of shards as those of one replay."""

import argparse
from collections.abc import Mapping
from typing import Any

from evaluator.cli.batch import results_of, summary
from evaluator.cli.leader import watch_rules_of
from evaluator.cli.wiring import segment_rules_of, warn
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.ports import SourceUnusable
from evaluator.replay.alarms import AlarmReplay
from evaluator.replay.merging import Merge
from evaluator.replay.shards import Shard
from evaluator.replay.writing import FileRules, Part
from evaluator.wire.reading import refused_as


def merge(options: argparse.Namespace, settings: Settings) -> int:  # noqa: ARG001  # those of the shards
    """`evaluator merge`."""
    merging = Merge.of([Shard(directory) for directory in options.directories])
    rules, alarms = rules_of(merging)
    with results_of(options) as results:
        done = merging.write(results, rules, alarms=alarms)
    parts = merging.parts()
    n_tasks = sum(len(part.tasks) for part in parts)
    print(f"merged {n_tasks} task{'s'[: n_tasks != 1]}; {summary(done, options.out)}")
    for part in parts:
        _warn_of_missing(part)
    if merging.settings.get("learns"):
        warn(
            "weights cannot be merged, because learning depends on the order of all queries: there "
            "is no weights.ndjson. Replay all tasks at once, or run `evaluator fit`."
        )
    return 0


def rules_of(merging: Merge) -> tuple[FileRules, AlarmReplay | None]:
    """The values from which a merge writes its files, by the settings in the manifests.

    Raises ConfigError or SourceUnusable.
    """
    of = merging.settings
    settings = settings_in({**of, **of.get("alarms", {})})
    measures = measure_set(settings)
    alarms = None
    if "alarms" in of:
        with refused_as(SourceUnusable, "the alarm-commands of the directories"):
            commands = merging.commands()
        watched = watch_rules_of(settings, measures)
        alarms = AlarmReplay(watched, measures, commands, of["alarms"])
    rules = FileRules(
        settings=of,
        meaning=merging.meaning,
        measures=measures,
        window_ms=settings.window_ms,
        retention_ms=settings.retention_ms,
        at_end=of["at_end"],
        segments=segment_rules_of(settings),
    )
    return rules, alarms


def settings_in(document: Mapping[str, Any]) -> Settings:
    """The settings of a manifest that change results. Raises SourceUnusable."""
    names = [*Settings().semantic_settings(), *(n for n in document if n.startswith("alarm_"))]
    try:
        return Settings(**{name: _tupled(document[name]) for name in names if name in document})
    except TypeError as error:
        raise SourceUnusable(f"the settings of a manifest are not known here: {error}.") from None


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def _warn_of_missing(part: Part) -> None:
    """Warns of partitions of the topics that no directory has."""
    partitions = (part.place or {}).get("partitions")
    if isinstance(partitions, int):
        missing = [str(task) for task in range(partitions) if task not in part.tasks]
        if missing:
            warn(
                f"the topics have {partitions} partitions, and tasks {', '.join(missing)[:200]} "
                "are missing: replay them and merge again."
            )

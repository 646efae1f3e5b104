"""`verify`: checks the hashes of results, or recomputes the results."""

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from evaluator.cli.exits import FOUND, UsageError
from evaluator.cli.parallel import plan_of
from evaluator.cli.ranges import Bounds, read_rules_of, replay_rules_of
from evaluator.cli.shards import rules_of, settings_in
from evaluator.cli.wiring import MAX_SHOWN_CHARS, meaning_of, topic_names
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.core.types.records import LOGS
from evaluator.replay.merging import Merge
from evaluator.replay.online_learning import WEIGHTS
from evaluator.replay.results import ResultDirectory
from evaluator.replay.shards import Shard
from evaluator.replay.writing import MANIFEST, SCHEMAS

_MEMBERS: Final = (
    "version",
    "code_sha256",
    "meaning",
    "place",
    "ranges",
    "tasks",
    "gaps",
    "levels",
)


def verify(options: argparse.Namespace, settings: Settings) -> int:
    """`evaluator verify`."""
    shard = Shard(options.directory)
    found = list(_changed(shard))
    if not found and options.source is not None:
        beside = options.directory.parent
        where = beside if os.access(beside, os.W_OK) else None  # None: of the system
        with tempfile.TemporaryDirectory(prefix=".verify-", dir=where) as place:
            options.out = Path(place) / "again"
            _compute_again(options, settings, shard)
            found = list(_differing(shard, Shard(options.out)))
    for text in found:
        print(text)
    if found:
        return FOUND
    how = "has the files of its manifest"
    if options.source is not None:
        how = f"was recomputed from {options.source} with the same bytes"
        if WEIGHTS in shard.manifest.files:
            how += f", but for {WEIGHTS}: only its hash was checked"
    print(f"{options.directory} {how}; chain {shard.manifest.chain}")
    return 0


def _changed(shard: Shard) -> Iterator[str]:
    """Differences from the manifest, which is checked first."""
    for name, entry in (shard.manifest.tables | shard.manifest.files).items():
        path = shard.directory / name
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size_bytes = file.tell()
        except OSError as error:
            yield f"{name}: cannot be read: {error.strerror or error}"
            continue
        if size_bytes != entry.size_bytes:
            yield f"{name}: {size_bytes} bytes, and {entry.size_bytes} in {MANIFEST}"
        elif digest != entry.sha256:
            yield f"{name}: other bytes than those of {MANIFEST}"


def _compute_again(options: argparse.Namespace, given: Settings, shard: Shard) -> None:
    """Replays the ranges of the manifest with its settings, into `options.out`."""
    document = shard.manifest.settings
    if shard.manifest.parts:
        raise UsageError(
            f"{shard.directory} is of topics in several places. Verify the directories from which "
            "it was merged, each with its source."
        )
    for name in ("weights", "scorers"):
        if document.get(name):
            raise UsageError(
                f"{shard.directory} was replayed with --{name.removesuffix('s')}, which verify "
                "cannot repeat. Replay it again, and compare the manifests."
            )
    own = settings_in({**document, **document.get("alarms", {})})
    names = (*own.semantic_settings(), *document.get("alarms", {}))
    changes = {name: getattr(own, name) for name in names}
    changes["learning"] = "propose" if document["learns"] else "off"
    settings = replace(given, **changes, emit_query=document["emit_query"])
    if meaning_of(settings) != shard.manifest.meaning:
        raise UsageError(
            f"{shard.directory} has another meaning than this version with its settings. Give the "
            "same --mapping, and use the version that is in its manifest."
        )
    _set_range(options, settings, shard)
    read = read_rules_of(options, settings, features=settings.learns)
    measures = measure_set(settings)
    rules = replay_rules_of(options, settings, measures, read, learns=settings.learns)
    _, alarms = rules_of(Merge.of([shard]))
    plan = plan_of(options, settings, read, _bounds(shard), always=True)
    if plan is None:
        raise UsageError(f"{shard.directory} names no tasks. Replay it again.")
    results = ResultDirectory(options.out, force=options.force)
    plan.write(results, options, settings, rules, alarms=alarms, online_learning=None)


def _set_range(options: argparse.Namespace, settings: Settings, shard: Shard) -> None:
    """Sets the options of `replay` that the manifest stands for."""
    document = shard.manifest.settings
    topics = {str(log): topic for log, topic in topic_names(settings).items()}
    options.skip = [
        f"{topics[name.rpartition('-')[0]]}-{name.rpartition('-')[2]}:{first}-{last}"
        for name, ranges in document.get("skips", {}).items()
        for first, last in ranges
    ]
    options.begin = options.end = options.weights = options.openmetrics = None
    options.scorer, options.force, options.at_end = [], False, document["at_end"]
    options.strict = False
    options.tasks = ",".join(shard.manifest.tasks)
    has_schemas = SCHEMAS in shard.manifest.files
    options.schemas = shard.directory / SCHEMAS if has_schemas else None


def _bounds(shard: Shard) -> Bounds:
    part = shard.manifest.part()
    return {(log, task): part.ranges[f"{log}-{task}"] for task in part.tasks for log in LOGS}


def _differing(shard: Shard, again: Shard) -> Iterator[str]:
    """Differences from the recomputed results."""
    for name in sorted(shard.manifest.files.keys() & again.manifest.files.keys()):
        if shard.manifest.files[name].sha256 != again.manifest.files[name].sha256:
            pairs = zip_longest(shard.lines(name), again.lines(name))
            number = next(n for n, (old, new) in enumerate(pairs, 1) if old != new)
            yield f"{name}: line {number} differs from the recomputed one"
    for name in sorted(again.manifest.files.keys() - shard.manifest.files.keys()):
        yield f"{name}: missing, and in the recomputed results"
    old, new = (json.loads((each.directory / MANIFEST).read_bytes()) for each in (shard, again))
    for name in _MEMBERS:
        if old.get(name) != new.get(name):
            yield f"{MANIFEST}: {name} was {_short(old.get(name))}, and is {_short(new.get(name))}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."

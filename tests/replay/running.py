"""A replay of files in one call, and its results."""

import json
from argparse import Namespace
from pathlib import Path

from msgspec.structs import replace

from evaluator.adapters.files import FileRange
from evaluator.cli.ranges import replay_rules_of
from evaluator.config import Settings
from evaluator.config.measures import measure_set
from evaluator.replay.ranges import ReadRules
from evaluator.replay.results import ResultDirectory
from evaluator.replay.run import replay

TOPICS = {"rankings": "rankings", "judgments": "judgments"}
NAMES = {
    "evaluations.ndjson",
    "totals.json",
    "settled.ndjson",
    "windows.ndjson",
    "dead-letters.ndjson",
    "manifest.json",
}
READ = ("from_ms", "to_ms")


def meaning(*, at_end="settle", weights=None, skips=None, **changes):
    """The rules of a replay with these settings; *learns* is learning = propose."""
    read = {name: changes.pop(name) for name in READ if name in changes}
    learns = changes.pop("learns", False)
    settings = Settings(**changes, learning="propose" if learns else "off")
    rules = ReadRules(
        max_future_skew_ms=settings.max_future_skew_ms,
        max_poll_records=settings.max_poll_records,
        features=learns,
        segments=settings.segments,
        skips=skips or {},
        **read,
    )
    options = Namespace(at_end=at_end)
    made = replay_rules_of(options, settings, measure_set(settings), rules, learns=learns)
    return replace(made, weights=weights)


async def replayed(directory, out, **options):
    """The results of the replay."""
    await run(directory, out, **options)
    return contents(out)


async def run(directory, out, *, force=False, memory_bytes=64 << 20, settings=None, **options):
    results = ResultDirectory(Path(out), force=force, memory_bytes=memory_bytes)
    read = {name: options.pop(name) for name in (*READ, "max_poll_records") if name in options}
    await replay(
        FileRange(Path(directory)),
        results,
        meaning(**(settings or {}), **read),
        topic_names=TOPICS,
        show_progress=False,
        **options,
    )


def contents(out):
    """The bytes of every file, including hidden files."""
    return {path.name: path.read_bytes() for path in Path(out).iterdir()}


def rows(files, name):
    return [json.loads(line) for line in files[name].splitlines()]


def ranking(trace_id="t", timestamp_ms=0, ids=("a", "b"), scores=(2.0, 1.0), **more):
    message = {
        "schema_version": 1,
        "trace_id": trace_id,
        "node_id": "n",
        "timestamp_ms": timestamp_ms,
        "candidate_ids": ids,
        "scores": scores,
        **more,
    }
    return json.dumps(message).encode()


def judgment(trace_id="t", timestamp_ms=0, grades=None, **more):
    message = {
        "schema_version": 1,
        "trace_id": trace_id,
        "node_id": "n",
        "timestamp_ms": timestamp_ms,
        "grades": {"a": 1} if grades is None else grades,
        **more,
    }
    return json.dumps(message).encode()


def put(directory, name, lines):
    directory = Path(directory)
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(b"".join(line + b"\n" for line in lines))
    return directory

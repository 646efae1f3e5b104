"""A replay of files in one call, and what it left."""

import json
from pathlib import Path

from evaluator.adapters.directory import ResultDirectory
from evaluator.adapters.files import FileRange
from evaluator.core.measures import MeasureSet
from evaluator.replay.run import Meaning, replay

TOPICS = {"rankings": "rankings", "judgments": "judgments"}
NAMES = {
    "evaluations.ndjson",
    "totals.json",
    "settled.ndjson",
    "windows.ndjson",
    "dead-letters.ndjson",
    "manifest.json",
}
SCALES = ("map_graded_max_grade", "err_max_grade")
DEFAULTS = {
    "retention_ms": 86_400_000,
    "maturity_ms": 3_600_000,
    "early_ms": 60_000,
    "remember_ms": 3_600_000,
    "out_of_orderness_ms": 300_000,
    "max_future_skew_ms": 300_000,
    "window_ms": 60_000,
    "measures": ("top1", "top3", "mrr", "ndcg@10", "map@10"),
    "empty": "zero",
    "emit_query": True,
    "at_end": "settle",
}


def meaning(**changes):
    settings = {**DEFAULTS, **changes}
    scales = {name: settings.pop(name) for name in SCALES if name in settings}
    return Meaning(**{**settings, "measures": MeasureSet.parse(settings["measures"], **scales)})


async def replayed(directory, out, **options):
    """What the replay left."""
    await run(directory, out, **options)
    return contents(out)


async def run(directory, out, *, force=False, memory_bytes=64 << 20, settings=None, **options):
    results = ResultDirectory(Path(out), force=force, memory_bytes=memory_bytes)
    await replay(
        FileRange(Path(directory)),
        results,
        meaning(**(settings or {})),
        topic_names=TOPICS,
        show_progress=False,
        **options,
    )


def contents(out):
    """The bytes of every file, hidden ones too."""
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

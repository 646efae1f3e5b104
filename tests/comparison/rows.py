"""Folders like those of a replay, made from a few numbers."""

import hashlib
import json
from pathlib import Path


def row(trace_id, values, *, node_id="n", event_time_ms=1_000, grades=None, **more):
    """A line of evaluations.ndjson: *values* by ranker, each by measure or for mrr alone."""
    by_measure = {
        ranker: value if isinstance(value, dict) else {"mrr": value}
        for ranker, value in values.items()
    }
    message = {
        "trace_id": trace_id,
        "node_id": node_id,
        "event_time_ms": event_time_ms,
        "model": "m",
        "variant": "",
        "revision": 1,
        "grades": {"a": 1} if grades is None else grades,
        "rank": dict.fromkeys(values, 1),
        "top3": {ranker: [["a", 1.5]] for ranker in values},
        "values": by_measure,
        **more,
    }
    return json.dumps(message).encode()


def put(folder, rows, *, name="evaluations.ndjson", **manifest):
    """A folder with these lines, and their manifest with the members of *manifest*."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    text = b"".join(line + b"\n" for line in rows)
    (folder / name).write_bytes(text)
    document = {
        "format": 2,
        "version": "0.1.0",
        "code_sha256": "c" * 64,
        "settings": {"retention_ms": 1},
        "files": {name: {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}},
        "chain": "d" * 64,
        **manifest,
    }
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder
